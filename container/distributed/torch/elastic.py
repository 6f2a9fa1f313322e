"""Elastic training by Horovod's ``hvd.elastic``: ranks come and go while the script runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from container.contract import events
from container.distributed.torch.horovod import HorovodCollectives
from container.distributed.torch.loader import Loader


class ElasticHorovodCollectives(HorovodCollectives):
    """Those of ranks whose number changes: they meet again in the function that ``hvd.elastic.run`` wraps.

    ``hvd.elastic.TorchState`` then gives all of them rank 0's model, optimizer and place in the data; a
    :class:`Loader` among its arguments is taken as Horovod's own sampler is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._met: list[Callable[[], None]] = []
        events.rank = self.rank
        self._have_states_tell()

    def when_met(self, then: Callable[[], None]) -> None:
        """Have a function called whenever all ranks have rank 0's weights."""
        self._met.append(then)

    def model(self, model: Any) -> Any:
        """Return it as it is: while this rank makes its model, the others may be training."""
        return model

    def _have_states_tell(self) -> None:
        import torch
        from horovod.torch.elastic import state

        met = self._have_met

        class OptimizerHandler(state.OptimizerStateHandler):
            """The last of a state's parts that Horovod brings to all ranks is its optimizer."""

            def sync(self) -> None:
                super().sync()
                met()

        own = [(Loader, state.SamplerStateHandler), (torch.optim.Optimizer, OptimizerHandler)]
        state.set_handler_registry([*own, *state.get_handler_registry()])

    def _have_met(self) -> None:
        events.rank = self.rank
        for then in self._met:
            then()
