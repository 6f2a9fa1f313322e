"""Provide the methods of a cluster that are the same for every framework."""

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
    """The cluster of processes that train together.

    Args:
        surroundings: The cluster as detected from the environment variables.
        collectives: The collective operations of the ranks.

    Attributes:
        strategy: The strategy's name, such as ``none``, ``mpi``, ``collective_all_reduce`` or ``torch_distributed``.
        host: This host's name, which is also in ``SM_CURRENT_HOST``.
        local_rank: The process's number among the ranks of this host, from 0.
        local_size: Number of ranks on this host.
        collectives: The collective operations of the ranks.
        faults: The faults to inject at training steps.
    """

    #: Whether this process coordinates workers instead of being one of the ranks.
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
        """Return this process's rank, from 0."""
        return self.collectives.rank

    @property
    def size(self) -> int:
        """Return the number of processes that compute gradients. In elastic clusters, this number can change."""
        return self.collectives.size

    @property
    def is_chief(self) -> bool:
        """Return whether this process must write shared files, such as the model. Only rank 0 writes these files."""
        return self.rank == 0

    @property
    def preempted(self) -> bool:
        """Return whether this process has received SIGTERM, because a spot host is interrupted or the job is stopped.

        All ranks of the job receive SIGTERM, but not all in the same training step. The first read of this property
        must be in the main thread. After the first read, SIGTERM no longer terminates the process. Therefore the script
        must save the training and exit before the process is killed. With TensorFlow, the callbacks of
        ``cluster.callbacks(checkpointer)`` save and exit automatically.

        Raises:
            DistributedError: the first read is not in the main thread.
        """
        if not notice.listen(keep_listening):
            raise DistributedError("Read cluster.preempted once in the main thread before another thread reads it.")
        return notice.came

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on every rank. All ranks must call this method. The values of the other ranks are
        ignored.
        """
        return self.collectives.broadcast_object(value)

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        self.collectives.barrier()

    def all_reduce(self, values: Any, *, op: str = "sum") -> Any:
        """Return the sum or the average of numbers or arrays over the ranks. All ranks must call this method with
        values of the same shapes.

        Args:
            values: A number, an array, a tensor, or a list or dict of such values.
            op: ``"sum"`` or ``"average"``.

        Returns:
            The results in the same structure as ``values``, as numpy arrays and floats.
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
        """Convert a number, or an array of the framework, to a numpy array of 64-bit floats."""
        return np.asarray(value, np.float64)

    def report(self, /, **values: float) -> None:
        """Report metrics of the job. ``job.metrics()`` returns each metric with the rank that reported it.

        If ``step`` is among the values, the faults of ``fit(faults=…)`` that are due at this step are injected.

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
        """Return the folder into which rank 0 writes the model. Return None on other ranks.

        Args:
            directory: The folder. None for ``$SM_MODEL_DIR``.

        Raises:
            DistributedError: ``directory`` is None, and SM_MODEL_DIR is not set.
        """
        target = directory or os.environ.get("SM_MODEL_DIR")
        if not target:
            raise DistributedError("export() needs a directory: SM_MODEL_DIR is not set.")
        return Path(target) if self.is_chief else None
