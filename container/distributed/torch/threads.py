"""A rank's share of its machine's cores: PyTorch's threads spin while they wait, at the cost of other ranks."""

from __future__ import annotations

import functools
import os

from container.system.host_machine import cpu_count

#: Where one is set, the threads are somebody's choice, or OpenMPI has bound the rank to cores of its own.
_CHOSEN = ("OMP_NUM_THREADS", "OMPI_MCA_orte_bound_at_launch")


@functools.cache
def _own() -> int:
    """Return how many threads there were before."""
    import torch

    return int(torch.get_num_threads())


def divide(ranks: int) -> None:
    """Have this process compute with its share of the machine's cores, or with fewer threads if it had fewer.

    Args:
        ranks: How many ranks share the machine.
    """
    import torch

    own = _own()
    if not any(os.environ.get(name) for name in _CHOSEN):
        torch.set_num_threads(min(own, max(1, cpu_count() // ranks)))
