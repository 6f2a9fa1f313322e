"""A cluster of two hosts under each strategy: what its processes are, so that one test holds for all of them.

Parameter servers import TensorFlow: about four seconds of a core each. In a job that ends before they have, they cost
what the job lasts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from estimators import MPI, CollectiveAllReduce, ParameterServer


@dataclasses.dataclass(frozen=True)
class Shape:
    """A cluster.

    Attributes:
        name: Its strategy's name.
        ranks: Host and process of every rank, in rank order.
        servers: Host and process of what only serves.
        distribution: The strategy.
        hosts: How many hosts.
    """

    name: str
    distribution: Any
    ranks: tuple[tuple[str, str], ...]
    servers: tuple[tuple[str, str], ...] = ()
    hosts: int = 2

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of ``Make``."""
        return {"hosts": self.hosts, "distribution": self.distribution}

    def place(self, rank: int) -> str:
        """How a failure names a rank: ``algo-2, rank 1``."""
        return ", ".join(self.ranks[rank])


NONE = Shape("none", None, (("algo-1", "rank 0"), ("algo-2", "rank 1")))
_FOUR = (("algo-1", "rank 0"), ("algo-1", "rank 1"), ("algo-2", "rank 2"), ("algo-2", "rank 3"))
MPI_ = Shape("mpi", MPI(processes_per_host=2), _FOUR)
COLLECTIVE = Shape("collective_all_reduce", CollectiveAllReduce(processes_per_host=2), _FOUR)
SERVERS = Shape(
    "parameter_server",
    ParameterServer(),
    (("algo-1", "chief"), ("algo-1", "worker"), ("algo-2", "worker")),
    (("algo-1", "ps"), ("algo-2", "ps")),
)
#: TensorFlow 1's form, in which each worker trains by itself.
MASTER = Shape(
    "parameter_server-sagemaker",
    ParameterServer(cluster_spec="sagemaker"),
    (("algo-1", "master"), ("algo-2", "worker")),
    (("algo-1", "ps"), ("algo-2", "ps")),
)

ALL = (NONE, MPI_, COLLECTIVE, SERVERS)

#: For tests with an argument ``shape``.
every = pytest.mark.parametrize("shape", ALL, ids=str)
