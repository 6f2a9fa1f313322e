"""Decide which processes can fail without failing the job: the workers of TensorFlow's coordinator.

The coordinator notices that a worker has ended, and gives the worker's tasks to the other workers. When the worker
serves at its address again, the coordinator uses it again. A coordinator or a parameter server cannot be restarted,
because its state is stored nowhere else.
"""

from __future__ import annotations

from container.contract.plan import Plan
from container.contract.strategies import Distribution, ParameterServer
from container.toolkit.process_group import ClusterProcess


def allows(member: ClusterProcess, plan: Plan | None, strategy: Distribution | None, limit: int) -> bool:
    """Return whether a failed process is restarted without failing the job.

    Args:
        member: The failed process.
        plan: The job's plan.
        strategy: The job's strategy.
        limit: The maximum number of times a process may be restarted.
    """
    coordinated = isinstance(strategy, ParameterServer) and strategy.coordinated
    killed = member.signal is not None and member.exception is None and not member.told
    alone = plan is None or len(plan.membership.hosts) == 1  # no other host would continue meanwhile
    return coordinated and killed and not alone and member.name == "worker" and member.revivals < limit
