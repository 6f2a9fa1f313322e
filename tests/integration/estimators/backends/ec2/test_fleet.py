"""A job's instances against the API: prepared, waited for, ended. Nothing boots here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from ec2_server import Ec2Server

from container.contract import hyperparameters as codec
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.base import Backend
from estimators.backends.ec2.fleet import Ec2Fleet, NoInstance
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.hosts.provider import ProvidedJob
from estimators.job.request import Algorithm, JobOptions, OutputConfig, Resources, TrainingJobSpec


@pytest.fixture
def fleet(
    asyncio_loop: AsyncioLoop, ec2: Ec2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ec2Fleet]:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    spec = TrainingJobSpec(
        name="job-1",
        algorithm=Algorithm(),
        hyperparameters=codec.encode({codec.PROGRAM: "train.py"}),
        output=OutputConfig(path="/nowhere"),
        resources=Resources(instance_type="ec2.c5.large", instance_count=2),
        spot=True,
    )
    job = ProvidedJob(
        loop=asyncio_loop,
        spec=spec,
        options=JobOptions(backend="ec2"),
        found={},
        protected=set(),
        backend=cast(Backend, None),  # only hosts on this machine use it
        events=asyncio.Queue(),
    )
    options = Ec2Options(
        subnets=tuple(ec2.subnets.values()),
        ami="/fleetfit/image",
        ssh_from=("203.0.113.7/32",),
        reach="private",
        on_demand_price=0.1,
        poll=0.2,
    )
    before = set(threading.enumerate())
    one = Ec2Fleet(job, options)
    yield one
    one.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.endswith("(body)"):  # what was asked of EC2 last
            thread.join()
    if one._remover is not None:
        asyncio_loop.run(asyncio.wait_for(one._remover.process.wait(), 120))
        assert ec2.running() == []


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def test_instances_are_launched_once_and_end_with_those_who_have_them(
    fleet: Ec2Fleet, ec2: Ec2Server, asyncio_loop: AsyncioLoop
) -> None:
    ec2.lost_answers = 1

    async def live() -> None:
        slots = [fleet.want(), fleet.want()]
        found = await asyncio.gather(*(slot.boot() for slot in slots))
        assert len(ec2.running()) == 2 and ec2.count("CreateFleet") == 2
        assert len({form["ClientToken"] for name, form in ec2.asked if name == "CreateFleet"}) == 1
        login, host = fleet.settings.identity, fleet.settings.known_hosts
        assert login is not None and login.stat().st_mode & 0o777 == 0o600
        assert host.read_text().startswith(f"{fleet.alias} ssh-ed25519 ") and not (login.parent / "host").exists()
        fleet.drop(slots[0])
        await until(lambda: ec2.running() == [found[1].id])
        ec2.end(found[1].id, "Server.SpotInstanceTermination")
        await until(slots[1].over.done)
        assert str(slots[1].over.result()) == "EC2 has taken the instance back"

    asyncio_loop.run(asyncio.wait_for(live(), 120))


def test_what_cannot_be_prepared_is_said_with_its_remedy(
    fleet: Ec2Fleet, ec2: Ec2Server, asyncio_loop: AsyncioLoop
) -> None:
    ec2.refuse("DescribeImages", "InvalidAMIID.NotFound")
    with pytest.raises(NoInstance, match=r"backend_options=\{'ami'"):
        asyncio_loop.run(asyncio.wait_for(fleet.want().boot(), 120))
