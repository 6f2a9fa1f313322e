"""Train with Horovod's ``hvd.elastic`` while ranks join and leave."""

from __future__ import annotations

import os
from typing import Any

from container.contract import events, variables
from container.contract.detection import Surroundings
from container.distributed.torch import threads
from container.distributed.torch.cluster import Comparing, TorchCluster
from container.distributed.torch.horovod import HorovodCollectives
from container.distributed.torch.loader import TorchLoader


class ElasticTorchCluster(TorchCluster):
    """The cluster of an elastic job. The ranks repeat the rendezvous whenever ranks join or leave.

    A script passes its training function to ``hvd.elastic.run``. At each rendezvous, ``hvd.elastic.TorchState`` sends
    rank 0's model, optimizer and position in the data to all ranks. If a :class:`TorchLoader` is passed to
    ``TorchState``, the loader's position in the data is also sent to all ranks, and is stored and restored with each
    commit.

    Args:
        surroundings: The cluster as detected from the environment variables.
        collectives: The collective operations of the ranks.
        device: This rank's device, as a ``torch.device``.

    Attributes:
        saved: The number of the last checkpoint that any host has saved.
    """

    def __init__(self, surroundings: Surroundings, collectives: HorovodCollectives, device: Any) -> None:
        super().__init__(surroundings, collectives, device)
        self.saved = 0
        self._comparing: list[Comparing] = []
        self._shares_machine = os.environ.get(variables.SHARED_MACHINE) == "1"
        events.rank = self.rank
        self._have_states_met()

    def model(self, model: Any, **options: Any) -> Any:
        """Move a module to this rank's device. ``TorchState`` later sends rank 0's parameters and buffers to all ranks.

        The method contains no collective operation, because other ranks may be training while a rank that joins creates
        its model.

        Args:
            model: A ``torch.nn.Module``.
            options: Options are not supported under Horovod.

        Raises:
            TypeError: ``options`` are passed.
        """
        self._refuse_options(options)
        return model.to(self.device)

    def _compare(self, comparing: Comparing) -> bool:
        comparing.wait_for_meeting()
        self._comparing.append(comparing)
        return True

    def _have_states_met(self) -> None:
        """Extend Horovod's state classes. Each rendezvous then also shares the position of a :class:`TorchLoader`
        and the number of the last checkpoint among the ranks. It also restarts the comparison of the ranks' weights.
        """
        from horovod.torch.elastic import TorchState, state

        state.set_handler_registry([(TorchLoader, state.SamplerStateHandler), *state.get_handler_registry()])
        sync = TorchState.sync

        def meet(found: Any) -> None:
            for one in self._comparing:
                one.pause()
            sync(found)
            handlers = list(found._handlers.values())
            for handler in handlers:
                # Horovod makes a step with a new optimizer, to create the optimizer's state. With weight decay, this
                # step changes the weights, so they are sent again.
                if isinstance(handler, state.ModelStateHandler):
                    handler.sync()
            for handler in handlers:
                handler.save()  # otherwise a rank that has just joined would restore its initial state
            self.saved = self.broadcast_object(self.saved)
            events.rank = self.rank
            if self._shares_machine:
                threads.divide(self.size)
            for one in self._comparing:
                one.begin()

        TorchState.sync = meet
