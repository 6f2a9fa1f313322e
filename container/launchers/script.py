"""Plan the *script* launcher: the entry point runs once on each host, without a distribution strategy."""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan one process per host.

    Without a strategy, each host runs the whole script, as on SageMaker. With several hosts, such a job is rarely
    intended. Therefore the plan has a warning.
    """
    hosts = len(membership.hosts)
    warnings: tuple[str, ...] = ()
    if hosts > 1:
        warnings = (
            f"{hosts} hosts without a distribution strategy: each host runs the whole script by itself, "
            f"{_data(environment)}. Give the job a distribution strategy to train together.",
        )
    return Plan.of(environment, membership, rank_processes(membership, command), warnings=warnings)


def _data(environment: Environment) -> str:
    """Return the end of a sentence about the data of each host. The text names the channels of which each host has a
    share, and the channels of which each host has all data.
    """
    sharded = {
        name: config.get("S3DistributionType") == "ShardedByS3Key"
        for name, config in sorted(environment.input_data_config.items())
    }
    if not any(sharded.values()):
        return "with all the data"
    shares = ", ".join(repr(name) for name, dealt in sharded.items() if dealt)
    whole = ", ".join(repr(name) for name, dealt in sharded.items() if not dealt)
    return f"with its own share of {shares}" + (f" and all of {whole}" if whole else "")
