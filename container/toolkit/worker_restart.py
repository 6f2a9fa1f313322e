"""Which processes a job can lose without being over: the workers of TensorFlow's coordinator.

The chief notices that a worker is gone, gives its work to the others, and takes it back when it serves at its address
again. A chief or a parameter server holds what nobody else has.
"""

from __future__ import annotations

from container.contract.plan import Plan
from container.contract.strategies import Distribution, ParameterServer
from container.toolkit.process_group import ClusterProcess


def allows(member: ClusterProcess, plan: Plan | None, strategy: Distribution | None, limit: int) -> bool:
    """Return whether a process that has failed is to be started again by itself.

    Args:
        member: The process.
        plan: What the job runs.
        strategy: The job's.
        limit: How often at most.
    """
    coordinated = isinstance(strategy, ParameterServer) and strategy.coordinated
    killed = member.signal is not None and member.exception is None and not member.told
    alone = plan is None or len(plan.membership.hosts) == 1  # nobody would go on meanwhile
    return coordinated and killed and not alone and member.name == "worker" and member.revivals < limit
