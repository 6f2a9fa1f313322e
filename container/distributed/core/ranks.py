"""The processes that train together: what a script can ask of them with every framework."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from container.contract import diverging, events
from container.contract.detection import Surroundings
from container.contract.errors import DistributedError
from container.contract.names import unknown
from container.distributed.core.collectives import Collectives
from container.distributed.core.fault_injection import InjectedFaults
from container.distributed.core.notice import keep_listening, notice

Value = TypeVar("Value")
Talk = TypeVar("Talk", bound=Collectives)


class Ranks(Generic[Talk]):
    """The processes that train together.

    Args:
        surroundings: What the environment said.
        collectives: How the ranks talk.

    Attributes:
        strategy: The strategy's name: ``none``, ``mpi``, ``collective_all_reduce``, ``torch_distributed`` …
        host: This host's name, as in ``SM_CURRENT_HOST``.
        local_rank: The rank on this host, from 0.
        local_size: The number of ranks of this host.
        collectives: How the ranks talk.
        faults: Faults that are ordered for some step.
    """

    #: Whether this process coordinates workers, rather than being one of the ranks.
    coordinates = False

    def __init__(self, surroundings: Surroundings, collectives: Talk) -> None:
        self.strategy = surroundings.kind.value
        self.host = surroundings.host
        self.local_rank = surroundings.local_rank
        self.local_size = surroundings.local_size
        self.faults = InjectedFaults(os.environ)
        self.collectives = collectives

    def __repr__(self) -> str:
        return f"<Cluster {self.strategy}: rank {self.rank} of {self.size} on {self.host}>"

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self.collectives.rank

    @property
    def size(self) -> int:
        """How many processes compute gradients. Read it when it is needed: an elastic cluster changes."""
        return self.collectives.size

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @property
    def preempted(self) -> bool:
        """Whether this process was told to end (SIGTERM): by a spot interruption of a host, or a stop of the job.

        True on all ranks of the job from the notice on, not at the same step on each. From the first look on, which
        must be in the main thread, the signal itself ends nothing any more: save and leave the training in time.
        TensorFlow's ``callbacks(checkpointer)`` does both by itself.

        Raises:
            DistributedError: the first look is in another thread.
        """
        if not notice.listen(keep_listening):
            raise DistributedError("Read cluster.preempted once in the main thread before another thread reads it.")
        return notice.came

    def broadcast_object(self, value: Value) -> Value:
        """Give every rank rank 0's value. All ranks must call it; what the others pass is not looked at."""
        return self.collectives.broadcast_object(value)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.collectives.barrier()

    def all_reduce(self, values: Any, *, op: str = "sum") -> Any:
        """Combine numbers or arrays over the ranks. All ranks must call it, with values of the same shapes.

        Args:
            values: A number, an array or tensor, or a list or dict of these.
            op: ``"sum"`` or ``"average"``.

        Returns:
            The same structure, of numpy arrays and floats.
        """
        if op not in ("sum", "average"):
            raise ValueError(unknown("op", op, ("sum", "average")))
        if isinstance(values, Mapping):
            names = sorted(values)
            found = self.all_reduce([values[name] for name in names], op=op)
            return dict(zip(names, found, strict=True))
        alone = not isinstance(values, list | tuple)
        arrays = [self._array(value) for value in ([values] if alone else values)]
        divisor = self.size if op == "average" else 1
        sums = [total / divisor for total in self.collectives.sum_arrays(arrays)]
        results = [float(total) if np.ndim(total) == 0 else total for total in sums]
        return results[0] if alone else results

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return a number or an array of the framework's as an array of numbers."""
        return np.asarray(value, np.float64)

    def report(self, /, **values: float) -> None:
        """Make metrics of the job: they are in ``job.metrics()``, with the rank that reported them.

        Raises:
            TypeError: a value is not a number.
        """
        found: dict[str, float] = {}
        for name, value in values.items():
            try:
                found[name] = float(value)
            except (TypeError, ValueError):
                raise TypeError(f"report({name}=…) takes a number, got {value!r}.") from None
        place = {name: found[name] for name in diverging.PLACES if name in found}
        for name, value in found.items():
            where = place if diverging.has_diverged(name, value) else {}
            events.emit("metric", name=name, value=value, **where)
        if "step" in found and self.faults.pending:
            self.faults.reached(int(found["step"]), rank=self.rank, coordinates=self.coordinates)

    def _export_folder(self, directory: str | os.PathLike[str] | None) -> Path | None:
        """Return where rank 0 writes the model, by default ``$SM_MODEL_DIR``; None on other ranks.

        Raises:
            DistributedError: neither a directory nor SM_MODEL_DIR is given.
        """
        target = directory or os.environ.get("SM_MODEL_DIR")
        if not target:
            raise DistributedError("export() needs a directory: SM_MODEL_DIR is not set.")
        return Path(target) if self.is_chief else None
