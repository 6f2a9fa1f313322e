"""What becomes of a job's containers on an engine that is a value: starts, words, signals, ends, and what is kept."""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from container.contract import variables
from container.contract.layout import success_text
from container.contract.strategies import MPI, Distribution, ElasticHorovod
from container.system.asyncio_loop import AsyncioLoop
from container.system.fork_server import decoded
from estimators.backends.docker import kept, provider
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import ContainerEnd
from estimators.backends.docker.provider import DockerProvider
from estimators.backends.events import AttemptFailed, BackendEvent, HostEnd, OutputRead
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import TOOLKIT_LABEL
from estimators.job.request import Algorithm, JobOptions, OutputConfig, Resources, TrainingJobSpec
from estimators.records.record import JobRecord


class Engine:
    """Has containers, as far as a test needs them.

    Attributes:
        did: What it was asked for.
        fails: What it refuses: an operation -> why.
        holds: An operation that waits for the gate.
    """

    def __init__(self, *, toolkit: bool) -> None:
        self.toolkit = toolkit
        self.did: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.plans: dict[str, ContainerPlan] = {}
        self.theirs: dict[str, socket.socket] = {}  # host -> the container's end of its connection
        self.ends: dict[str, queue.SimpleQueue[ContainerEnd]] = {}
        self.gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.holds = ""

    def _do(self, operation: str, what: str = "") -> None:
        self.did.append(f"{operation} {what}".strip())
        if operation == self.holds:
            self.gate.get()
        if operation in self.fails:
            raise self.fails[operation]

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool) -> None:
        self._do("network", name)

    def gateway(self, name: str) -> str:
        return "172.18.0.1"

    def create(self, plan: ContainerPlan) -> str:
        self._do("create", plan.name)
        self.plans[plan.host] = plan
        self.ends[plan.host] = queue.SimpleQueue()
        return plan.host

    def attach(self, container: str, plan: ContainerPlan) -> socket.socket:
        ours, self.theirs[container] = socket.socketpair()
        return ours

    def start(self, container: str, plan: ContainerPlan) -> None:
        self._do("start", container)

    def wait(self, container: str) -> ContainerEnd:
        host = next(host for host, plan in self.plans.items() if container in (host, plan.name))
        ended = self.ends[host].get()
        if ended.error == "lost":
            raise EngineError("it does not answer")
        return ended

    def image(self, name: str) -> ImageFacts:
        return ImageFacts(id="1", labels={TOOLKIT_LABEL: "1"} if self.toolkit else {})

    def ended(self, container: str, code: int) -> ContainerEnd:
        return self.wait(container)

    def kill(self, container: str, name: str) -> None:
        self._do("kill", f"{container} {name}")

    def end(self, host: str, code: int = 0, **more: Any) -> None:
        """Let a container end."""
        self.theirs[host].close()
        self.ends[host].put(ContainerEnd(exit_code=code, **more))

    def prints(self, host: str, *texts: bytes) -> None:
        for byte in b"".join(b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text for text in texts):
            self.theirs[host].sendall(bytes([byte]))


class Remover:
    """Takes note of what it is told."""

    told: list[str]

    def __init__(
        self, loop: AsyncioLoop, protected: set[int], module: str, value: str, duty: Mapping[str, Any]
    ) -> None:
        self.told.append(f"start {duty['label']}")

    def finish(self) -> None:
        self.told.append("finish")


class Job:
    """A job in such containers, as its supervisor sees it."""

    def __init__(
        self,
        loop: AsyncioLoop,
        folder: Path,
        engine: Engine,
        hosts: int,
        *,
        name: str = "job-1",
        keep: int | None = None,
        strategy: Distribution = MPI(),  # noqa: B008 - a value
        instance_type: str = "local",
    ) -> None:
        self.loop, self.engine = loop, engine
        self.ends: list[HostEnd] = []
        self.failures: list[str] = []
        self.said: dict[str, bytes] = {}
        spec = TrainingJobSpec(
            name=name,
            algorithm=Algorithm(image="image:1"),
            hyperparameters=strategy.to_hyperparameters(),
            output=OutputConfig(path=str(folder / "output")),
            resources=Resources(instance_type=instance_type, instance_count=hosts, keep_alive_s=keep),
        )
        self.record = JobRecord.create(name, folder)
        self.cluster = HostCluster(DockerProvider, loop, self.record, spec, JobOptions(backend="local"), self)

    def put_nowait(self, event: BackendEvent) -> None:
        """Take note of what the cluster tells."""
        match event:
            case OutputRead():
                self.said[event.host] = self.said.get(event.host, b"") + event.data
            case HostEnd():
                self.ends.append(event)
            case AttemptFailed():
                self.failures.append(event.failure.message)

    @property
    def provider(self) -> provider.DockerProvider:
        found = self.cluster.provider
        assert isinstance(found, provider.DockerProvider)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        self.loop.run(asyncio.wait_for(wait(), 20))

    def start(self, attempt: int = 0) -> None:
        self.cluster.start(attempt)
        hosts = self.cluster.spec.hosts
        self.until(lambda: all(f"start {host}" in self.engine.did for host in hosts))
        self.until(lambda: all(member.toolkit._running for member in self.cluster._members.values()))

    def start_until(self, operation: str, what: str) -> None:
        """Start it, and have its engine wait in an operation."""
        self.engine.holds = operation
        self.cluster.start(0)
        self.until(lambda: f"{operation} {what}" in self.engine.did)

    def end_of(self, host: str) -> HostEnd:
        self.until(lambda: any(end.host == host for end in self.ends))
        return next(end for end in self.ends if end.host == host)


NewJob = Callable[..., Job]


@pytest.fixture
def new_job(asyncio_loop: AsyncioLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewJob]:
    """Makes a job in containers."""
    monkeypatch.setattr(provider, "Remover", Remover)
    monkeypatch.setattr(Remover, "told", [], raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    jobs: list[Job] = []

    def make(hosts: int = 2, *, toolkit: bool = True, **more: Any) -> Job:
        engine = Engine(toolkit=toolkit)
        monkeypatch.setattr(provider, "Engine", lambda: engine)
        job = Job(asyncio_loop, tmp_path, engine, hosts, **more)
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        for ends in job.engine.ends.values():
            ends.put(ContainerEnd(exit_code=0))
        job.cluster.cleanup()
        for theirs in job.engine.theirs.values():
            theirs.close()
        job.record.release()


@pytest.fixture
def job(new_job: NewJob) -> Job:
    """A job in one container."""
    return new_job(1)


pytestmark = pytest.mark.leaves("files")  # results of threads come through a pipe that goes with the loop


class TestStart:
    def test_containers_start_in_a_network_that_is_made_before(self, new_job: NewJob) -> None:
        job = new_job()
        job.start()
        did = job.engine.did
        assert did[0] == "network fleetfit-job-1" and did.count("network fleetfit-job-1") == 1
        plan = job.engine.plans["algo-2"]
        environment = plan.environment
        assert environment[variables.CONTROL_ADDRESS] == "algo-1:7711" and environment[variables.HOSTS_HERE] == "2"
        assert variables.JOB_TOKEN not in environment and variables.SHARED_MACHINE not in environment
        assert environment[variables.LIFELINE_FD] == "0" and plan.lifeline
        assert Remover.told == ["start fleetfit.record"]

    def test_a_host_that_comes_later_is_the_jobs_like_the_others(
        self, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provider, "gpu_count", lambda: 6)
        job = new_job(2, strategy=ElasticHorovod(max_hosts=3), instance_type="local_gpu")
        job.start()
        assert job.cluster.meeting_place() == ("172.18.0.1", "eth0")
        job.cluster.add_host(job.cluster.next_host())
        job.until(lambda: "start algo-3" in job.engine.did)
        assert (job.engine.plans["algo-1"].gpus, job.engine.plans["algo-3"].gpus) == ((0, 1, 2), (4, 5))

    def test_an_engine_that_refuses_is_the_reason_and_is_asked_again_by_another_attempt(self, job: Job) -> None:
        job.engine.fails["network"] = EngineError("no address range left")
        job.cluster.start(0)
        end = job.end_of("algo-1")
        assert end.failure is not None and end.failure.message == "no address range left" and end.exit_code == 255
        job.engine.fails.clear()
        job.start(1)
        assert job.engine.did.count("network fleetfit-job-1") == 2
        assert job.engine.plans["algo-1"].name == "fleetfit-job-1-algo-1-1"
        assert Remover.told == ["start fleetfit.record"]

    @pytest.mark.parametrize(("hosts", "strategy"), [(1, MPI()), (2, ElasticHorovod(max_hosts=3))])
    def test_an_engine_whose_answer_cannot_be_understood_is_the_reason(
        self, new_job: NewJob, hosts: int, strategy: Distribution
    ) -> None:
        job = new_job(hosts, strategy=strategy)
        job.engine.fails["network"] = KeyError("Id")
        job.cluster.start(0)
        job.until(lambda: job.failures or job.ends)
        said = [*job.failures, *(end.failure.message for end in job.ends if end.failure is not None)]
        assert "the container engine's answer cannot be understood: KeyError('Id')." in said

    def test_a_job_that_is_ended_while_a_container_is_made_does_not_start_it(self, job: Job) -> None:
        job.start_until("create", "fleetfit-job-1-algo-1")
        job.cluster.end_now()
        job.engine.gate.put(None)
        assert job.end_of("algo-1").failure is None, "it was told to"
        assert "start algo-1" not in job.engine.did

    @pytest.mark.parametrize("how", ["end_now", "kill_host"])
    def test_a_container_that_is_killed_while_the_engine_starts_it_is_killed_before_its_end_is_told(
        self, job: Job, how: str
    ) -> None:
        job.start_until("start", "algo-1")
        job.cluster.end_now() if how == "end_now" else job.cluster.kill_host("algo-1")
        job.loop.run(asyncio.sleep(0))
        assert not job.ends
        job.engine.gate.put(None)
        job.end_of("algo-1")
        assert job.engine.did[-1] == "kill algo-1 SIGKILL"

    def test_a_job_that_is_ended_does_not_wait_for_the_engine(self, job: Job) -> None:
        job.engine.holds = "network"
        job.cluster.start(0)
        job.until(lambda: job.engine.did and job.cluster._members["algo-1"].toolkit)
        job.cluster.end_now()
        assert job.end_of("algo-1").failure is None, "it was told to"
        job.engine.gate.put(None)
        job.until(job.provider._made.done)
        assert job.engine.did == ["network fleetfit-job-1"]


class TestEnd:
    def test_a_container_ends_when_all_that_it_printed_was_given(self, new_job: NewJob) -> None:
        job = new_job()
        job.start()
        job.engine.prints("algo-1", b"loss=", b"", b"0.5\n")
        job.engine.end("algo-1")
        assert job.end_of("algo-1") == HostEnd(host="algo-1", exit_code=0)
        assert job.said["algo-1"] == b"loss=0.5\n" and job.cluster.running
        job.engine.end("algo-2", 1)
        assert job.end_of("algo-2") == HostEnd(host="algo-2", exit_code=1)  # the toolkit says why
        assert not job.cluster.running

    def test_a_toolkit_that_has_said_that_all_went_well_is_not_waited_for(self, job: Job) -> None:
        job.start()
        job.record.tree("algo-1").success_file.parent.mkdir(parents=True, exist_ok=True)
        job.record.tree("algo-1").success_file.write_text(success_text(0))
        job.engine.theirs["algo-1"].close()
        assert job.end_of("algo-1").exit_code == 0

    @pytest.mark.parametrize(
        ("ended", "words", "number"),
        [
            (ContainerEnd(exit_code=137), "killed from outside (SIGKILL)", signal.SIGKILL),
            (ContainerEnd(exit_code=137, out_of_memory=True), "ran out of memory", signal.SIGKILL),
            (
                ContainerEnd(exit_code=255, error="lost"),
                "the connection to the engine was lost while the job ran",
                None,
            ),
        ],
    )
    def test_the_engine_knows_the_reason(self, job: Job, ended: ContainerEnd, words: str, number: int | None) -> None:
        job.start()
        job.engine.theirs["algo-1"].close()
        job.engine.ends["algo-1"].put(ended)
        end = job.end_of("algo-1")
        assert end.failure is not None and words in end.failure.message and end.signal == number


class TestStop:
    def test_our_toolkit_is_told_by_words(self, new_job: NewJob) -> None:
        job = new_job()
        job.start()
        job.cluster.say("algo-1", b"word\n")
        job.cluster.stop()
        job.cluster.end_now()
        words = b"word\n" + variables.SAY_STOP + variables.SAY_END
        assert job.engine.theirs["algo-1"].recv(1000) == words
        assert not [what for what in job.engine.did if what.startswith("kill")]
        job.until(lambda: "kill algo-2 SIGKILL" in job.engine.did)  # half a second later

    def test_a_word_waits_for_its_container(self, job: Job) -> None:
        job.start_until("create", "fleetfit-job-1-algo-1")
        job.cluster.stop()
        job.engine.gate.put(None)
        job.until(lambda: "algo-1" in job.engine.theirs)
        job.until(lambda: job.cluster._members["algo-1"].toolkit._running)
        assert job.engine.theirs["algo-1"].recv(1000) == variables.SAY_STOP

    def test_a_program_of_others_gets_signals(self, new_job: NewJob) -> None:
        job = new_job(1, toolkit=False)
        job.start()
        job.cluster.stop()
        job.until(lambda: "kill algo-1 SIGTERM" in job.engine.did)
        job.cluster.end_now()
        job.until(lambda: "kill algo-1 SIGKILL" in job.engine.did)
        job.engine.end("algo-1", 137)
        assert job.end_of("algo-1").failure is None, "it was told to"


class TestKept:
    @pytest.fixture(autouse=True)
    def in_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the containers' first processes be values."""

        def start(pool: kept.ContainerPool, host: str, environment: Mapping[str, str]) -> Any:
            self.environments.append(environment)
            ours, theirs = socket.socketpair()
            self.streams.append(theirs)
            return ours, queue.SimpleQueue()

        self.environments: list[Mapping[str, str]] = []
        self.streams: list[socket.socket] = []
        self.kept: list[float] = []
        monkeypatch.setattr(kept.ContainerPool, "start", start)
        monkeypatch.setattr(kept.ContainerPool, "take", lambda pool, hosts: None)
        monkeypatch.setattr(kept, "exit_code", lambda answer: None)

        class Connection:
            def sendall(connection, data: bytes) -> None:
                self.kept.append(decoded(data)["keep"])

            def close(connection) -> None: ...

        monkeypatch.setattr(kept.ContainerPool, "_await_start", lambda pool, hosts, engine: None)
        self.connection = Connection

    def end(self, job: Job, **ended: Any) -> None:
        job.engine.theirs.clear()
        for stream in self.streams:
            stream.close()
        job.engine.ends["algo-1"].put(ContainerEnd(**ended))
        job.until(lambda: job.ends)

    def start(self, job: Job) -> kept.ContainerPool:
        job.cluster.start(0)
        job.until(lambda: self.environments and job.cluster._members["algo-1"].toolkit._running)
        pool = job.provider._pool
        assert pool is not None
        pool._connections["algo-1"] = self.connection()  # type: ignore[assignment]
        return pool

    def test_containers_are_kept_when_the_job_has_left_them_as_they_were(self, new_job: NewJob) -> None:
        job = new_job(1, keep=60)
        pool, environment = self.start(job), self.environments[0]
        assert environment[variables.TREE].startswith(str(job.record.path))
        assert environment[variables.LIFELINE_FD] == "0"
        assert list(pool.path.glob("secrets/*/*")) and job.engine.plans["algo-1"].name == pool.container("algo-1")
        self.end(job, exit_code=1)
        job.cluster.cleanup()
        assert Remover.told == ["start fleetfit.pool", "finish"]
        assert self.kept == [60]
        assert not list(pool.path.glob("secrets/*/*"))

    def test_containers_with_secrets_that_cannot_be_deleted_are_not(self, new_job: NewJob) -> None:
        job = new_job(1, keep=60)
        pool = self.start(job)
        (pool.secrets("algo-1") / "a folder").mkdir()
        self.end(job, exit_code=0)
        job.cluster.cleanup()
        assert not self.kept

    def test_the_next_job_has_the_same_containers(self, new_job: NewJob) -> None:
        first = new_job(1, keep=60)
        pool = self.start(first)
        self.end(first, exit_code=0)
        first.cluster.cleanup()
        self.environments.clear()
        second = new_job(1, keep=60, name="job-2")
        second.engine.plans, second.engine.ends = first.engine.plans, first.engine.ends  # the same containers
        assert self.start(second).path == pool.path and not second.engine.did
        assert Remover.told == ["start fleetfit.pool", "finish", "start fleetfit.pool"]

    def test_containers_in_which_something_was_killed_are_not(
        self, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = new_job(1, keep=60)
        first = self.start(job)
        self.end(job, exit_code=137, out_of_memory=True)
        self.environments.clear()
        monkeypatch.setattr(kept, "find", lambda *arguments: None)  # the first process has ended with the connection
        job.cluster.start(1)
        job.until(lambda: self.environments)
        assert job.provider._pool is not first and not first._connections
        job.cluster.cleanup()
        assert not self.kept
        assert Remover.told == ["start fleetfit.pool", "finish", "start fleetfit.pool", "finish"]
