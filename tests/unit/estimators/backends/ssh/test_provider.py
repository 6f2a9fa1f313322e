"""Which machine a host gets, when it waits for one, and what is given back; on a clock that the test moves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from values import ProviderQueue, ValueHost, VirtualLoop, provided, spec_of

from container.contract.strategies import MPI, Distribution, ElasticHorovod
from container.system import locks
from estimators.backends.hosts.provider import Host, HostError, HostUnavailable, ProvidedJob
from estimators.backends.ssh import machines
from estimators.backends.ssh.provider import Reservation, SshProvider
from estimators.job.request import JobOptions


class Provider(SshProvider):
    """Starts hosts as the test says.

    Attributes:
        fails: Machine -> why it does not come up.
        hangs: The machines that never come up.
        tried: The machines in the order in which they were.
    """

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self.fails: dict[str, str] = {}
        self.hangs: set[str] = set()
        self.tried: list[str] = []

    async def _start(self, name: str, reservation: Reservation) -> Host:  # type: ignore[override]
        self.tried.append(reservation.machine.name)
        if reservation.machine.name in self.hangs:
            await asyncio.Event().wait()
        if reservation.machine.name in self.fails:
            raise HostError(self.fails[reservation.machine.name])
        return ValueHost(name)

    def machine_of(self, host: str) -> str | None:
        return self._reservations[host].machine.name if host in self._reservations else None


class World:
    """A provider for a job, and who waits for hosts of it."""

    def __init__(self, strategy: Distribution, hosts: int, options: dict[str, Any]) -> None:
        self.loop = VirtualLoop()
        self.events = ProviderQueue()
        spec = spec_of(strategy, instance_type="ssh", hosts=hosts)
        self.provider = Provider(provided(self.loop, spec, self.events, **options))
        self.tasks: dict[str, asyncio.Task[Host]] = {}

    def acquire(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = self.loop.start(self._acquire(name))
        self.loop.advance()

    async def _acquire(self, name: str) -> Any:
        try:
            return await self.provider.acquire(name)
        except HostUnavailable as error:
            return str(error)

    def of(self, name: str) -> Any:
        """The host's machine, or why it has none; None while it waits."""
        task = self.tasks[name]
        if not task.done():
            return None
        found = task.result()
        return self.provider.machine_of(name) if isinstance(found, Host) else found

    def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.provider.close()
        self.loop.close()


NewWorld = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewWorld]:
    """Makes a job with machines ``a``, ``b`` and so on."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    made: list[World] = []

    def make(hosts: int = 2, machines: str = "a,b", strategy: Distribution | None = None, **options: Any) -> World:
        made.append(World(strategy or MPI(), hosts, {"hosts": machines.split(","), "python": "python3", **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def take(machine: str) -> int:
    """Have another job take a machine, until the descriptor is closed."""
    path = machines.locks_folder() / machine
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = locks.take(path)
    assert lock is not None
    os.write(lock, b"job-0")
    return lock


def is_free(machine: str) -> bool:
    return not locks.is_held(machines.locks_folder() / machine)


def test_each_host_has_a_machine_and_gives_it_back(world: NewWorld) -> None:
    job = world(hosts=3)
    job.acquire("algo-1", "algo-2", "algo-3")
    assert [job.of("algo-1"), job.of("algo-2")] == ["a", "b"]
    assert job.of("algo-3") == "no machine is free: this job has all of them. Add hosts"
    assert not is_free("a") and not is_free("b")
    host = job.tasks["algo-1"].result()
    job.provider.release(host)
    assert is_free("a")
    job.acquire("algo-3")
    assert job.of("algo-3") == "a"


def test_a_machine_of_two_fleets_runs_one_job(world: NewWorld) -> None:
    first, second = world(1, machines="a", fleet="one"), world(1, machines="a", fleet="two")
    first.acquire("algo-1")
    second.acquire("algo-1")
    assert first.of("algo-1") == "a"
    assert second.of("algo-1") == "no machine is free: other jobs have a (job-1). Wait for them, or add hosts"


def test_machines_are_tried_until_one_will_do_and_without_one_each_reason_is_said(world: NewWorld) -> None:
    job = world(machines="a,b,c")
    job.provider.fails = {"a": "nothing listens", "b": "no route"}
    job.acquire("algo-1")
    assert job.of("algo-1") == "c" and is_free("a") and is_free("b")
    other = take("b")
    job.acquire("algo-2")
    assert job.of("algo-2") == (
        "a: nothing listens; no machine is free: other jobs have b (job-0). Wait for them, or add hosts"
    )
    os.close(other)


def test_one_that_was_lost_is_taken_last(world: NewWorld) -> None:
    job = world(machines="a,b,c")
    job.provider._pool._losses = {"a": 2, "b": 1}
    job.acquire("algo-1", "algo-2", "algo-3")
    assert job.provider.tried == ["c", "b", "a"]


def test_a_host_that_is_not_needed_any_more_gives_its_machine_back(world: NewWorld) -> None:
    job = world()
    job.provider.hangs = {"a"}
    job.acquire("algo-1")
    assert not is_free("a")
    job.tasks["algo-1"].cancel()
    job.loop.advance()
    assert is_free("a")


def test_a_job_waits_for_all_its_machines_and_holds_none_meanwhile(world: NewWorld) -> None:
    a, b = take("a"), take("b")
    job = world(wait=300)
    job.acquire("algo-1", "algo-2")
    os.close(a)
    job.loop.advance(10)
    assert job.of("algo-1") is None and is_free("a")
    assert job.events.waits == [
        "waiting for machines: other jobs have a (job-0), b (job-0)",
        "waiting for machines: other jobs have b (job-0)",
    ]
    os.close(b)
    job.loop.advance(1.1)
    assert [job.of("algo-1"), job.of("algo-2")] == ["a", "b"]


def test_a_wait_ends_with_the_reason(world: NewWorld) -> None:
    other = take("b")
    job = world(wait=30)
    job.acquire("algo-1", "algo-2")
    job.loop.advance(29)
    assert job.of("algo-1") is None and is_free("a")
    job.loop.advance(2)
    assert job.of("algo-1") == "a"
    assert job.of("algo-2") == "no machine is free: other jobs have b (job-0). Wait for them, or add hosts"
    os.close(other)


def test_a_job_that_holds_machines_does_not_wait_for_the_others_for_long(world: NewWorld) -> None:
    job = world(hosts=3, machines="a,b", wait=86_400)
    job.acquire("algo-1")
    other = take("b")
    job.acquire("algo-2")
    job.loop.advance(590)
    assert job.of("algo-2") is None
    job.loop.advance(70)
    assert "other jobs have" in job.of("algo-2")
    os.close(other)


def test_who_waits_and_is_not_needed_any_more_is_not_waited_for(world: NewWorld) -> None:
    other = take("b")
    job = world(wait=300)
    job.acquire("algo-1", "algo-2")
    job.tasks["algo-2"].cancel()
    job.loop.advance(1.1)
    assert job.of("algo-1") == "a"
    os.close(other)
    assert is_free("b")


def test_machines_that_do_not_come_up_are_tried_again_after_longer_and_longer(world: NewWorld) -> None:
    other = take("b")
    job = world(hosts=1, wait=300)
    job.provider.fails = {"a": "no route"}
    job.acquire("algo-1")
    job.loop.advance(15)
    assert len(job.provider.tried) == 4  # after 0, 2, 6 and 14 s
    os.close(other)
    job.loop.advance(16)
    assert job.of("algo-1") == "b"


def test_close_gives_everything_back(world: NewWorld) -> None:
    other = take("c")
    job = world(hosts=3, machines="a,b,c", wait=300)
    job.acquire("algo-1", "algo-2", "algo-3")
    for task in job.tasks.values():
        task.cancel()
    job.provider.close()
    job.loop.advance()
    assert is_free("a") and is_free("b")
    os.close(other)


def test_where_discovery_names_machines_a_host_waits_for_its_own(world: NewWorld) -> None:
    job = world(strategy=ElasticHorovod(discovery="/hosts", min_hosts=1), machines="a,b")
    job.acquire("algo-1", "algo-2")
    assert job.provider.tried == []
    job.provider.locate("algo-2", "z:2222")
    job.provider.locate("algo-1", "ann@b")
    job.loop.advance()
    assert job.of("algo-1") == "b"
    assert job.of("algo-2") == "z"
    job.provider.release(job.tasks["algo-1"].result())
    job.acquire("algo-1")
    assert job.of("algo-1") is None  # it is said anew


@pytest.mark.parametrize(
    ("hosts", "machines", "said"),
    [
        (2, "a:2,b", None),
        (3, "a,b", "instance_count=3, but the fleet has 2 machines. Add machines."),
        (2, "a:1,b:2", "but the fleet has 1 machines with at least processes_per_host=2 slots; too few slots: a (1)"),
        (1, "", "there are no hosts. Name them with RunOptions("),
    ],
)
def test_too_few_machines_or_slots_are_refused_by_name(
    world: NewWorld, monkeypatch: pytest.MonkeyPatch, hosts: int, machines: str, said: str | None
) -> None:
    monkeypatch.delenv("FLEETFIT_HOSTS", raising=False)
    job = world(hosts, machines or "a", MPI(processes_per_host=2)).provider.job
    options = dataclasses.replace(
        job.options, backend_options={**job.options.backend_options, "hosts": machines or None}
    )
    refusals = SshProvider.validate(job.spec, options)
    assert refusals == [] if said is None else said in refusals[0]


def test_a_plan_says_how_hosts_are_reached(world: NewWorld) -> None:
    job = world(2, "a,ann@b", ssh_config="/lab/config").provider.job
    placement = SshProvider.describe(job.spec, job.options)
    ssh = ("ssh", "-F", "/lab/config")
    assert placement.connect == {"algo-1": (*ssh, "a"), "algo-2": (*ssh, "-l", "ann", "b")}


def test_a_trial_of_a_tuner_waits_for_machines_that_other_jobs_have() -> None:
    def waits(**asked: Any) -> Any:
        return SshProvider.patient(JobOptions(backend="ssh", backend_options={"hosts": ["a"], **asked}))["wait"]

    assert waits() > 86_400 and waits(wait=5) == 5
