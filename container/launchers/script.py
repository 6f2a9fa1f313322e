"""The *script* launcher: the entry point once on each host, without a distribution strategy."""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import HostPlan, Plan, ProcessPlan, Role


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan one process per host.

    Several hosts without a strategy each run the whole script, as on SageMaker; that is seldom meant, so it warns.
    """
    hosts = tuple(
        HostPlan(
            name=host.name,
            environment=environment.for_host(host.name).to_env_vars(),
            processes=(
                ProcessPlan(
                    name=f"rank {rank}", host=host.name, role=Role.RANK, argv=command, rank=rank, local_rank=local_rank
                ),
            ),
        )
        for rank, host, local_rank in membership.ranks()
    )
    warnings: tuple[str, ...] = ()
    if len(hosts) > 1:
        warnings = (
            f"{len(hosts)} hosts without a distribution strategy: each runs the whole script by itself, with all the "
            "data; pass distribution=… to train together.",
        )
    return Plan(strategy="none", membership=membership, hosts=hosts, warnings=warnings)
