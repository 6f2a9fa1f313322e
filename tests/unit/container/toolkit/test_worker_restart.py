"""Which processes a job can lose without being over."""

from __future__ import annotations

import dataclasses

import pytest

from container.contract.membership import Membership
from container.contract.plan import Plan, Role
from container.contract.strategies import MPI, Distribution, ParameterServer
from container.toolkit import machine
from container.toolkit.process_group import ClusterProcess

KILLED = ClusterProcess(name="worker", role=Role.RANK, rank=2, ended=True, signal=9)
TWO, ONE = (
    Plan(strategy="parameter_server", membership=Membership.of(names), hosts=()) for names in (["a", "b"], ["a"])
)


@pytest.mark.parametrize(
    ("member", "plan", "strategy", "limit", "allowed"),
    [
        (KILLED, TWO, ParameterServer(), 1, True),
        (dataclasses.replace(KILLED, role=Role.SERVER, rank=None), TWO, ParameterServer(script_on="chief"), 1, True),
        (KILLED, TWO, ParameterServer(), 0, False),  # nobody asked for retries
        (dataclasses.replace(KILLED, revivals=1), TWO, ParameterServer(), 1, False),
        (KILLED, ONE, ParameterServer(), 1, False),  # nobody would go on
        (KILLED, TWO, ParameterServer(cluster_spec="sagemaker"), 1, False),  # each trains by itself
        (KILLED, TWO, MPI(), 1, False),
        (dataclasses.replace(KILLED, name="ps"), TWO, ParameterServer(), 1, False),
        (dataclasses.replace(KILLED, name="chief"), TWO, ParameterServer(), 1, False),
        (dataclasses.replace(KILLED, signal=None, exit_code=1), TWO, ParameterServer(), 1, False),  # its own fault
        (dataclasses.replace(KILLED, told=True), TWO, ParameterServer(), 1, False),
        (KILLED, None, ParameterServer(), 1, False),
    ],
)
def test_killed_workers_of_a_coordinator_are_started_again(
    member: ClusterProcess, plan: Plan | None, strategy: Distribution, limit: int, allowed: bool
) -> None:
    assert machine.may_restart(member, plan, strategy, limit) is allowed
