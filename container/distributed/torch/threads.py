"""Divide a machine's cores among its ranks.

Without limits, each rank would use as many threads as there are cores. PyTorch's threads use processor time while they
wait, and would slow down other ranks.
"""

from __future__ import annotations

import functools
import os

from container.system.host_machine import cpu_count

#: If one of these variables is set, the user has chosen the threads, or OpenMPI has bound the rank to its own cores.
_CHOSEN = ("OMP_NUM_THREADS", "OMPI_MCA_orte_bound_at_launch")


@functools.cache
def _own() -> int:
    """Return the number of threads that PyTorch used before the first call of :func:`divide`."""
    import torch

    return int(torch.get_num_threads())


def divide(ranks: int) -> None:
    """Limit the number of PyTorch's threads in this process to the number of cores divided by the number of ranks. Do
    nothing if the user has chosen the number, or OpenMPI has bound the rank to cores.

    The number never becomes higher than it was before the first call.

    Args:
        ranks: Number of ranks that share the machine.
    """
    import torch

    own = _own()
    if not any(os.environ.get(name) for name in _CHOSEN):
        torch.set_num_threads(min(own, max(1, cpu_count() // ranks)))
