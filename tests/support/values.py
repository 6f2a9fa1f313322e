"""A job's hosts as values, on a loop whose clock moves when nothing else is left to do."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from container.contract import hyperparameters as codec
from container.contract.strategies import Distribution
from container.system.asyncio_loop import AsyncioLoop
from container.system.running import ProcessEnd
from estimators.backends.base import Backend
from estimators.backends.events import (
    AttemptFailed,
    BackendEvent,
    HostEnd,
    HostNoticed,
    LimitMet,
    OutputsCollected,
    ProviderEvent,
    StatusTold,
    WaitTold,
)
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.hosts.membership import Places
from estimators.backends.hosts.provider import (
    Host,
    HostError,
    HostFacts,
    HostLost,
    HostProvider,
    HostUnavailable,
    ProvidedJob,
)
from estimators.job.fleets import Capabilities
from estimators.job.request import Algorithm, JobOptions, OutputConfig, Resources, TrainingJobSpec
from estimators.records.record import JobRecord


class NothingHappens(AssertionError):
    """The test waits for something that cannot happen any more."""


class _VirtualSelector(selectors.SelectSelector):
    """Waits for nothing: it moves the clock instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise NothingHappens("no timer is set, and no descriptor is ready")
        if not ready and timeout is not None:
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(AsyncioLoop):
    """A loop on which an hour takes no time."""

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return its time, in seconds from 0."""
        return self._clock.now

    @property
    def now(self) -> float:
        """Its time, in seconds from 0."""
        return self._clock.now

    def advance(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens in so many seconds."""
        self.run(asyncio.sleep(max(seconds, 1e-6)))  # which passes when nothing else is ready


class ValueProcess:
    """A process that ends when the test says so; see :class:`estimators.backends.hosts.provider.HostProcess`."""

    def __init__(self, host: ValueHost, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv, self.env = list(argv), dict(env)
        self.signals: list[int] = []
        self.said = b""
        self.input_closed = False
        self._host = host
        self._over = asyncio.Event()
        self._end: ProcessEnd | None = None

    def write(self, data: bytes) -> None:
        self.said += data

    def close_input(self) -> None:
        self.input_closed = True
        if "sync" in self.argv and self._host.syncs_end:
            self.end(0)

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def end(self, code: int | None = 0, **more: Any) -> None:
        """End it."""
        self._end = ProcessEnd(exit_code=code, **more)
        self._over.set()

    def vanish(self) -> None:
        """Its host is lost."""
        self._over.set()

    async def wait(self) -> ProcessEnd:
        await self._over.wait()
        if self._end is None:
            raise HostLost(self._host.reason)
        return self._end


class ValueHost(Host):
    """A host that does what the test says.

    Attributes:
        does: What has been asked of it.
        waits: Operations (``push``, ``reach``, …) that wait until :meth:`go_on`.
        fails: Operation -> the reason why it fails.
        files: Its files, by folder.
    """

    interface = "eth0"
    caller_address = "10.0.0.254"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.address = f"10.0.0.{name.rpartition('-')[2]}"
        self.facts = HostFacts(root="/job", python="python", python_version="3.11", package="/code/container")
        self.does: list[str] = []
        self.waits: set[str] = set()
        self.fails: dict[str, str] = {}
        self.files: dict[str, Mapping[str, tuple[int, int]]] = {}
        self.processes: list[ValueProcess] = []
        self.closed = False
        self.aborted = 0
        self.syncs_end = True
        self._gates: dict[str, asyncio.Event] = {}

    @property
    def reason(self) -> str:
        """Why it is lost."""
        return self._loss_reason or "it was closed"

    @property
    def toolkit(self) -> ValueProcess:
        """The training process that was started last."""
        return [process for process in self.processes if process.argv[-1] == "train"][-1]

    @property
    def trains(self) -> bool:
        """Whether a training process was started."""
        return any(process.argv[-1] == "train" for process in self.processes)

    def go_on(self, operation: str) -> None:
        """Let an operation go on that waits."""
        self.waits.discard(operation)
        self._gates.setdefault(operation, asyncio.Event()).set()

    def lose(self, reason: str) -> None:
        super().lose(reason)
        self._vanish()

    def _vanish(self) -> None:
        for process in self.processes:
            process.vanish()
        for gate in self._gates.values():
            gate.set()

    async def _do(self, operation: str, what: str = "") -> None:
        self.does.append(f"{operation} {what}".strip())
        if operation in self.waits:
            await self._gates.setdefault(operation, asyncio.Event()).wait()
        if self._loss.is_set() or self.closed:
            raise HostLost(self.reason)
        if operation in self.fails:
            raise HostError(self.fails[operation])

    async def push(self, source: Path, target: str, *, follow: bool = True) -> None:
        await self._do("push", target)

    async def pull(self, source: str, target: Path) -> None:
        await self._do("pull", source)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], on_output: Callable[[bytes], None], **more: Any
    ) -> ValueProcess:
        process = ValueProcess(self, argv, env)
        self.processes.append(process)
        self.does.append(f"run {argv[-1] if argv[-1] == 'train' else ' '.join(argv[4:6])}")
        return process

    async def listen(self) -> int:
        await self._do("listen")
        return 7000

    async def reach(self, address: str, port: int) -> None:
        await self._do("reach", f"{address}:{port}")

    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        await self._do("list", path)
        return self.files.get(path, {})

    def remove(self, paths: Sequence[str]) -> None: ...

    async def await_files(self, paths: Sequence[str]) -> None:
        await self._do("await")

    def abort(self, spare: Sequence[Any] = ()) -> None:
        self.aborted += 1

    def close(self) -> None:
        self.closed = True
        self._vanish()


class ValueProvider(HostProvider):
    """Gives hosts at once, or when the test says so.

    Attributes:
        waits: Whether hosts come when the test gives them.
        asked: The hosts that are waited for.
        cancelled: The hosts whose acquisition was cancelled.
        released: The hosts that were given back.
        hosts: The newest host of each name.
    """

    name: ClassVar[str] = "values"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self.waits = False
        self.asked: dict[str, asyncio.Future[ValueHost]] = {}
        self.cancelled: list[str] = []
        self.released: list[str] = []
        self.hosts: dict[str, ValueHost] = {}
        self.waiting_for: set[str] = set()  # operations that new hosts wait in
        self.closed = False

    async def acquire(self, name: str) -> Host:
        if self.waits:
            assert name not in self.asked, f"{name} is acquired twice at once"
            self.asked[name] = self.loop.create_future()
            try:
                host = await self.asked[name]
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            finally:
                del self.asked[name]
        else:
            host = ValueHost(name)
        host.waits |= self.waiting_for
        self.hosts[name] = host
        return host

    def give(self, *names: str) -> None:
        """Let hosts come."""
        for name in names:
            self.asked[name].set_result(ValueHost(name))

    def refuse(self, name: str, reason: str) -> None:
        """Have no host of a name."""
        self.asked[name].set_exception(HostUnavailable(reason))

    def release(self, host: Host) -> None:
        self.released.append(host.name)

    def close(self) -> None:
        self.closed = True


class ProviderQueue(list[ProviderEvent]):
    """What a provider has told, in its order."""

    def put_nowait(self, event: ProviderEvent) -> None:
        self.append(event)

    @property
    def waits(self) -> list[str]:
        """What it has said that it waits for."""
        return [event.text for event in self if isinstance(event, WaitTold)]


def spec_of(
    strategy: Distribution | None = None,
    *,
    instance_type: str = "values",
    hosts: int = 2,
    output: str = "/nowhere",
    **more: Any,
) -> TrainingJobSpec:
    """What such a job is."""
    parameters = strategy.to_hyperparameters() if strategy is not None else {}
    return TrainingJobSpec(
        name="job-1",
        algorithm=Algorithm(),
        hyperparameters=codec.encode({codec.PROGRAM: "train.py", **parameters}),
        output=OutputConfig(path=output),
        resources=Resources(instance_type=instance_type, instance_count=hosts),
        **more,
    )


def provided(loop: VirtualLoop, spec: TrainingJobSpec, events: ProviderQueue, **options: Any) -> ProvidedJob:
    """A job as its provider gets it, with these options of the backend."""
    asked = JobOptions(backend=spec.instance_type.partition(".")[0], backend_options=options)
    nothing = cast(Backend, None)  # only hosts on this machine use it
    return ProvidedJob(loop=loop, spec=spec, options=asked, found={}, protected=set(), backend=nothing, events=events)


class Told:
    """An elastic job, as a source of hosts speaks to it; it keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def places(self, found: Places) -> None:
        self.said.append(dict(found))

    def leaving(self, name: str, seconds: float) -> None:
        self.said.append((name, seconds))

    def problem(self, text: str) -> None:
        self.said.append(text)

    def hopeless(self, text: str) -> None:
        self.said.append(f"hopeless: {text}")


class BridgingProvider(ValueProvider):
    """Forwards connections, unless it has a reason not to."""

    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True, bridges=True)
    reason = ""

    async def bridge(self, host: Host, other: Host, port: int) -> int:
        if self.reason:
            raise HostError(self.reason)
        return 9000 + port % 1000


class Job:
    """A job on such hosts, as its supervisor sees it.

    Attributes:
        told: What the cluster has told, in its order.
    """

    def __init__(
        self,
        folder: Path,
        strategy: Distribution | None,
        hosts: int = 2,
        *,
        provider: type[ValueProvider] = ValueProvider,
        checkpoints: Path | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.told: list[tuple[Any, ...]] = []
        spec = spec_of(strategy, hosts=hosts, output=str(folder / "output"))
        self.record = JobRecord.create("job-1", folder)
        self.cluster = HostCluster(provider, self.loop, self.record, spec, JobOptions(backend="values"), self)
        self.ends_on_failure = True

    def put_nowait(self, event: BackendEvent) -> None:
        """Take note of what the cluster tells."""
        match event:
            case StatusTold():
                self.told.append(("status", event.status, event.message))
            case HostEnd():
                self.told.append(("ended", event))
            case HostNoticed():
                self.told.append(("interrupted", event.host, event.seconds))
            case LimitMet():
                self.told.append(("limit", event.text))
            case OutputsCollected():
                self.told.append(("collected", event.failure))
            case AttemptFailed():
                self.told.append(("failed", event.failure.message))
                if self.ends_on_failure:
                    self.cluster.end_now()  # as the supervisor does

    @property
    def provider(self) -> ValueProvider:
        provider = self.cluster.provider
        assert isinstance(provider, ValueProvider)
        return provider

    def host(self, number: int) -> ValueHost:
        """The newest host of a number, from 1."""
        return self.provider.hosts[f"algo-{number}"]

    def start(self, attempt: int = 0) -> None:
        """Start an attempt, and let everything happen that needs nobody."""
        self.cluster.start(attempt)
        self.loop.advance()

    def advance(self, seconds: float = 0.0) -> None:
        self.loop.advance(seconds)

    def give(self, *names: str) -> None:
        """Let hosts come, and what follows happen."""
        self.provider.give(*names)
        self.advance()

    def refuse(self, name: str, reason: str) -> None:
        self.provider.refuse(name, reason)
        self.advance()

    def go_on(self, number: int, operation: str) -> None:
        self.host(number).go_on(operation)
        self.advance()

    def notice(self, number: int, seconds: float) -> None:
        self.host(number).notice(seconds)
        self.advance()

    def lose(self, number: int, reason: str) -> None:
        self.host(number).lose(reason)
        self.advance()

    def end(self, *numbers: int, code: int | None = 0, **more: Any) -> None:
        """End the toolkits of hosts at once, and let what follows happen."""
        for number in numbers:
            self.host(number).toolkit.end(code, **more)
        self.advance()

    def of_kind(self, kind: str) -> list[tuple[Any, ...]]:
        """What was told of a kind, without it."""
        return [values for told, *values in self.told if told == kind]  # type: ignore[misc]

    @property
    def ends(self) -> list[HostEnd]:
        """The ends that were told."""
        return [end for (end,) in self.of_kind("ended")]

    @property
    def failures(self) -> list[str]:
        return [text for (text,) in self.of_kind("failed")]

    def close(self) -> None:
        self.cluster.cleanup()
        self.loop.close()
        self.record.release()


@contextlib.contextmanager
def job_on_values(folder: Path, strategy: Distribution | None, hosts: int = 2, **more: Any) -> Iterator[Job]:
    """A job on hosts that are values; nothing of it may be left that has failed unnoticed."""
    job = Job(folder, strategy, hosts, **more)
    try:
        yield job
    finally:
        job.close()
