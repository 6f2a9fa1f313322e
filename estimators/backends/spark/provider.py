"""The provider: a barrier stage of Spark, each of whose tasks holds a host's place on an executor."""

from __future__ import annotations

import base64
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import MPI, Elastic
from container.system.loop import Loop
from estimators.backends.hosts import shipping
from estimators.backends.hosts.arrivals import Arrivals
from estimators.backends.hosts.cluster_client import ClusterClient
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.backends.spark import diagnosis, session
from estimators.backends.spark.options import SparkOptions
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

Ready = Callable[[Host], None]
Failed = Callable[[str], None]
Event = dict[str, Any]

#: How long Spark's own word for why a host is gone is waited for, in seconds.
_WHY_S = 0.5
#: What stands before a line of Spark's log: date, time, level, class.
_LOGGED = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ \w+: ", re.MULTILINE)


class SparkProvider:
    """Executors of Spark; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = "spark"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self.loop = loop
        self.spec = spec
        self.options = SparkOptions.of(options.backend_options)
        self.session: Mapping[str, Any] | None = None
        self._driver: _Driver | None = None
        self._wanted: list[_Wanted] = []
        self._starts: Counter[str] = Counter()
        self._there: dict[str, _Wanted] = {}  # host -> what it came by

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse options that are wrong, an environment without Spark, and a session that has no barrier stages."""
        try:
            given = SparkOptions.of(options.backend_options)
        except ConfigurationError as error:
            return [str(error)]
        strategy = spec.strategy
        if isinstance(strategy, Elastic) and strategy.discovery is not None:
            return ["Spark chooses the executors by itself; leave discovery= out."]
        joins = given.master is None and session.exists()
        reason = diagnosis.refusal(needs_java=not joins)
        if reason is None and given.master is None:
            reason = session.refusal()
        return [reason] if reason is not None else []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        given = SparkOptions.of(options.backend_options)
        where = given.master or ("this process's session" if session.exists() else f"local[{spec.instance_count}]")
        stage = "tasks" if isinstance(spec.strategy, Elastic) else "a barrier stage of tasks"
        return Placement(
            base_dir=lambda host: f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{host}/ml",
            python=given.python or "python",
            package=f"~/.cache/fleetfit/hosts/{shipping.code().name}/container",
            interface="",
            cpus=given.cpus() or 1,
            gpus=(given.amounts() or {}).get("gpu", 0),
            notes=(f"Spark: {stage}, {spec.instance_count} executors of {where}",),
        )

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return where the session of the caller is found."""
        return session.found()

    def heed(self, found: Mapping[str, Any]) -> None:
        """Run the job on its caller's session, unless the options name a cluster."""
        if self.options.master is None and found:
            self.session = found

    # --- hosts ---

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask for an executor; what is asked for at once is one barrier stage, unless the job is elastic."""
        self._wanted.append(_Wanted(self, name, ready, failed))
        if len(self._wanted) == 1:
            self.loop.call_later(0, self._ask)

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, []
        for group in [[one] for one in wanted] if self.elastic else [wanted]:
            if self._driver is None or self._driver.over:
                self._driver = _Driver(self)
            self._driver.acquire(group)

    @property
    def elastic(self) -> bool:
        """Whether hosts come and go one by one: a barrier stage ends as a whole."""
        return isinstance(self.spec.strategy, Elastic)

    def root(self, host: str) -> str:
        """Return a folder for a host that no agent has had: one that is cut off may still remove its own."""
        self._starts[host] += 1
        count = self._starts[host]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{host}"

    def came(self, wanted: _Wanted, host: Host) -> None:
        """A host is there."""
        self._there[wanted.name] = wanted
        wanted.ready(host)

    def release(self, host: Host) -> None:
        """Let Spark have what the host had."""
        wanted = self._there.pop(host.name, None)
        if wanted is not None:
            wanted.release()

    def close(self) -> None:
        """Leave Spark."""
        if self._driver is not None:
            self._driver.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is Spark."""
        return diagnosis.findings()


class _Wanted:
    """A host that is asked for, and then there.

    Attributes:
        name: Its name in the job.
        identity: By which it is known to the driver; "" before that was asked.
        address: Of its machine, when it has arrived.
    """

    def __init__(self, provider: SparkProvider, name: str, ready: Ready, failed: Failed) -> None:
        self._provider = provider
        self.name = name
        self.ready = ready
        self._failed = failed
        self.identity = ""
        self.address = ""
        self._driver: _Driver | None = None
        self._stage: list[_Wanted] = []
        self._host: _ExecutorHost | None = None
        self._fd = -1
        self._reason: str | None = None
        self._over = False
        self._waiting: Callable[[], None] | None = None

    def asked(self, driver: _Driver, identity: str, stage: list[_Wanted]) -> None:
        """The driver has been asked for it, and for the others of its stage."""
        self._driver, self.identity, self._stage = driver, identity, stage

    def arrived(self, fd: int) -> None:
        """Its connection is there; what is done with it waits for the others of its stage."""
        if self._over:
            os.close(fd)
            return
        self._fd = fd
        with socket.socket(fileno=os.dup(fd)) as connection:
            try:
                self.address = str(connection.getpeername()[0])
            except OSError:  # it is gone already, which is read from it
                self.address = "127.0.0.1"
        assert self._driver is not None
        self._driver.arrived(self)

    def begin(self) -> None:
        """All of its stage are there."""
        if self._over:
            return
        fd, self._fd = self._fd, -1
        self._over = True
        assert self._driver is not None
        provider = self._provider
        self._host = _ExecutorHost(
            provider.loop,
            self.name,
            fd,
            fd,
            why=self._why,
            root=provider.root(self.name),
            address=self.address,
            caller_address=self._driver.caller_address,
            interface="",
            ready=self._came,
            failed=self._refuse,
            silence=provider.options.silence,
        )

    def _came(self, host: RemoteHost) -> None:
        theirs, ours = host.facts.python_version.split(".")[:2], [str(number) for number in sys.version_info[:2]]
        if theirs != ours:
            host.close()
            self._refuse(
                f"its Python is {'.'.join(theirs)}, and this is {'.'.join(ours)}; name another one with "
                "backend_options={'python': …}"
            )
            return
        self._provider.came(self, host)

    def ended(self, reason: str) -> None:
        """Its task is over."""
        self._reason = reason
        if self._waiting is not None:
            self._waiting()
        self.fail(reason or "its task on Spark was ended")

    def fail(self, reason: str) -> None:
        """It does not come."""
        if not self._over:
            self._over = True
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self.release()
        self._failed(reason)

    def release(self) -> None:
        """It is not needed any more."""
        self._over = True
        self._host = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._driver is not None and self.identity:
            self._driver.release(self)

    def _why(self, reason: str, then: Callable[[str], None]) -> None:
        """Find out why the connection has ended: Spark may have a word for it."""

        def told() -> None:
            timer.cancel()
            self._waiting = self._host = None
            why = f"{reason} ({self._reason})" if self._reason else reason
            then(why)
            for other in self._stage:
                other.end_with(self.name, why)

        self._waiting = told
        timer = self._provider.loop.call_later(0.0 if self._reason is not None else _WHY_S, told)

    def end_with(self, name: str, why: str) -> None:
        """A host of its stage is lost, with which Spark ends it: at once, or the next attempt would find it there."""
        if self._waiting is not None:
            self._waiting()
        elif self._host is not None:
            host, self._host = self._host, None
            host.close()
            host.end(f"its barrier stage has ended with {name}, which was lost: {why}")


class _ExecutorHost(RemoteHost):
    """A host whose place a task holds: its end may be why the host is lost."""

    def __init__(self, *arguments: object, why: Callable[[str, Callable[[str], None]], None], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def end(self, reason: str) -> None:
        """It is lost, for a reason that is known."""
        super()._lost(reason)

    def _lost(self, reason: str) -> None:
        self._why(reason, self.end)


class _Driver:
    """What speaks with Spark (:mod:`.driver`), in the job's supervisor.

    Attributes:
        caller_address: Where the executors reach this machine.
    """

    def __init__(self, provider: SparkProvider) -> None:
        self._provider = provider
        self._loop = provider.loop
        self.caller_address = ""
        self._arrivals: Arrivals | None = None
        self._hosts: dict[str, _Wanted] = {}  # by identity
        self._queued: list[list[_Wanted]] = []
        self._stages: dict[str, list[_Wanted]] = {}  # who comes together, until all are there
        self._program = ClusterClient(
            provider.loop,
            Path(__file__).with_name("driver.py"),
            self._take,
            self._ended,
            protected=provider.protected,
            env=os.environ,
            logged=_LOGGED,
        )
        options, own = provider.options, provider.session is None
        if own and options.master is None:
            provider.tell("No Spark session is in the process of fit(), so one of this machine was made for this job.")
        self._program.send(
            op="connect",
            session=None if own else dict(provider.session or {}),
            master=options.master,
            conf=dict(options.conf),
            name=provider.spec.name,
            python=options.python,
            hosts=len(provider.spec.hosts),
            code=self._program.code,
        )

    @property
    def over(self) -> bool:
        """Whether it has ended, or could not join."""
        return self._program.over

    def acquire(self, group: list[_Wanted]) -> None:
        """Ask for hosts that are to be had together, when there is a session."""
        if self._arrivals is None:
            self._queued.append(group)
            return
        options = self._provider.options
        hosts = []
        for one in group:
            identity, key = self._arrivals.expect(one.arrived)
            one.asked(self, base64.b64encode(identity).decode(), group)
            self._hosts[one.identity] = one
            self._stages[one.identity] = group
            hosts.append({"name": one.name, "identity": one.identity, "key": base64.b64encode(key).decode()})
        self._program.send(
            op="acquire",
            hosts=hosts,
            together=not self._provider.elastic,
            cpus=options.cpus(),
            amounts=options.amounts(),
            python=options.python,
            address=self.caller_address,
            port=self._arrivals.port,
        )

    def arrived(self, wanted: _Wanted) -> None:
        """A host of a stage is there; they begin when all are."""
        group = self._stages.get(wanted.identity, [])
        if not all(one.address for one in group):
            return
        if self._is_mixed(group):
            for one in group:
                one.fail(
                    "Spark has put some hosts on one machine and some on others, with which MPI cannot do; have one "
                    "executor a machine (spark.executor.cores), or as many hosts as machines"
                )
        for one in group:
            self._stages.pop(one.identity, None)
            one.begin()

    def _is_mixed(self, group: list[_Wanted]) -> bool:
        """Return whether hosts of MPI, which knows machines by name, are neither on one nor each on its own."""
        machines = {one.address for one in group}
        return isinstance(self._provider.spec.strategy, MPI) and 1 < len(machines) < len(group)

    def release(self, wanted: _Wanted) -> None:
        """A host is not needed any more."""
        if self._hosts.pop(wanted.identity, None) is not None:
            self._stages.pop(wanted.identity, None)
            if self._arrivals is not None:
                self._arrivals.forget(base64.b64decode(wanted.identity))
            self._program.send(op="release", host=wanted.identity)

    def close(self) -> None:
        """Have it leave Spark; it does so by itself, and nobody has to wait."""
        self._program.close()
        if self._arrivals is not None:
            self._arrivals.close()

    def _take(self, event: Event) -> None:
        if event["event"] == "refused":
            self._fail(event["reason"])
        elif event["event"] == "connected":
            self._connected(event)
        elif event["event"] == "pending":
            self._provider.tell(f"{event['reason']}.")
        elif (wanted := self._hosts.get(event["host"])) is not None:
            wanted.ended(event["reason"])

    def _connected(self, event: Event) -> None:
        self.caller_address = self._provider.options.caller_address or event["address"]
        try:
            self._arrivals = Arrivals(self._loop, self.caller_address)
        except OSError as error:
            self._fail(
                f"nothing can listen at {self.caller_address}, where the executors are to reach this machine "
                f"({error.strerror}); name another address of its with backend_options={{'caller_address': …}}"
            )
            return
        queued, self._queued = self._queued, []
        for group in queued:
            self.acquire(group)

    def _ended(self, said: str) -> None:
        self._fail(f"the process that speaks with Spark has ended unexpectedly{f': {said}' if said else ''}")

    def _fail(self, reason: str) -> None:
        self.close()
        waiting = [*(one for group in self._queued for one in group), *self._hosts.values()]
        self._queued = []
        self._hosts.clear()
        for one in waiting:
            one.fail(reason)
