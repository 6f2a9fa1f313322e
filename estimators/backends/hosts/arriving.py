"""Hosts that a cluster's own workers start, and that connect back: what the providers of Ray and of Spark share.

A program of its own speaks with the cluster (:mod:`.cluster_client`): it has workers start our agent, and says what
becomes of them. The agents' connections arrive at a port of this machine (:mod:`.arrivals`).
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from container.contract.strategies import MPI, Elastic
from container.system.loop import Loop
from estimators.backends.hosts import shipping
from estimators.backends.hosts.arrivals import Arrivals
from estimators.backends.hosts.cluster_client import ClusterClient
from estimators.backends.hosts.provider import Host, Placement
from estimators.backends.hosts.remote import SILENCE_S, RemoteHost
from estimators.backends.option_rules import above_0, interpreter, option, read, refuse
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

Ready = Callable[[Host], None]
Failed = Callable[[str], None]
Event = dict[str, Any]
Options = TypeVar("Options", bound="ArrivingOptions")


def _ip(where: str, value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise refuse(where, "an IPv4 address", value) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrivingOptions:
    """``RunOptions(backend_options={…})`` that all such backends have.

    Attributes:
        python: The hosts' interpreter; None: that of the cluster's workers.
        caller_address: Where the hosts reach this machine; None: where the cluster reaches it.
        silence: After how many seconds without a sign of life a host is lost.
    """

    instance_type: ClassVar[str]
    python: str | None = option(interpreter)
    caller_address: str | None = option(_ip)
    silence: float = option(above_0("seconds, more than 0"), SILENCE_S)

    @classmethod
    def of(cls: type[Options], given: Mapping[str, Any]) -> Options:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        made: Options = read(cls, given, what=f"option of instance_type {cls.instance_type!r}")
        return made


class ArrivingProvider:
    """Base class of such providers; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)
    #: What the cluster is called.
    title: ClassVar[str]
    #: The program that speaks with it, and what stands before a message in a line of its log.
    program: ClassVar[Path]
    logged: ClassVar[re.Pattern[str]]
    #: How long the cluster's own word for why a host is gone is waited for, in seconds.
    why_s: ClassVar[float]

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions, given: ArrivingOptions) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self.loop = loop
        self.spec = spec
        self.given = given
        self._connection: ClusterConnection | None = None
        self._wanted: list[ExpectedHost] = []
        self._starts: Counter[str] = Counter()
        self._there: dict[str, ExpectedHost] = {}  # host -> what it came by

    # --- what only one cluster has ---

    def connecting(self) -> dict[str, Any]:
        """Return with what the program is asked to ``connect``."""
        raise NotImplementedError

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return with what it is asked to ``acquire`` hosts, beside themselves and the way here."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the program's variables."""
        return os.environ

    def connected(self, event: Event) -> None:
        """The program has joined the cluster."""

    def disconnected(self, reason: str) -> None:
        """It has not, or has ended."""

    def told(self, event: Event) -> None:
        """The program says something of no host."""

    def told_of(self, host: ExpectedHost, event: Event) -> None:
        """The program says something of a host."""

    def arrived(self, host: ExpectedHost) -> None:
        """A host's connection is there."""
        host.begin()

    def where(self, host: ExpectedHost) -> str:
        """Return what stands before the reason for which a host does not come."""
        return ""

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """A host that was there is lost."""

    @classmethod
    def placement(
        cls, spec: TrainingJobSpec, given: ArrivingOptions, note: str, *, cpus: int = 1, gpus: int = 0
    ) -> Placement:
        """Say where the job would run: on machines that are not known before."""
        return Placement(
            base_dir=lambda host: f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{host}/ml",
            python=given.python or "python",
            package=f"~/.cache/fleetfit/hosts/{shipping.code().name}/container",
            interface="",
            cpus=cpus,
            gpus=gpus,
            notes=(note,),
        )

    # --- hosts ---

    @property
    def connection(self) -> ClusterConnection:
        """What speaks with the cluster; another one where it has ended."""
        if self._connection is None or self._connection.over:
            self._connection = ClusterConnection(self)
        return self._connection

    @property
    def elastic(self) -> bool:
        """Whether hosts come and go one by one: what is asked for at once comes together otherwise."""
        return isinstance(self.spec.strategy, Elastic)

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask for a host."""
        self.submit(ExpectedHost(self, name, ready, failed))

    def submit(self, host: ExpectedHost) -> None:
        """Ask for a host, together with the others that are asked for at once."""
        self._wanted.append(host)
        if len(self._wanted) == 1:
            self.loop.call_later(0, self._ask)

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, []
        for group in [[one] for one in wanted] if self.elastic else [wanted]:
            self.connection.acquire(group)

    def root(self, host: str) -> str:
        """Return a folder for a host that no agent has had: one that is cut off may still remove its own."""
        self._starts[host] += 1
        count = self._starts[host]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{host}"

    def came(self, host: ExpectedHost, remote: Host) -> None:
        """A host is there."""
        self._there[host.name] = host
        host.ready(remote)

    def refuse_mixed(self, hosts: Sequence[ExpectedHost], machines: Sequence[str], remedy: str) -> None:
        """Refuse hosts of MPI, which knows machines by name, that are neither on one nor each on its own."""
        if isinstance(self.spec.strategy, MPI) and 1 < len(set(machines)) < len(hosts):
            for host in list(hosts):
                host.fail(
                    f"{self.title} has put some hosts on one machine and some on others, with which MPI cannot do; "
                    f"{remedy}"
                )

    def release(self, host: Host) -> None:
        """Let the cluster have what the host had."""
        expected = self._there.pop(host.name, None)
        if expected is not None:
            expected.release()

    def close(self) -> None:
        """Leave the cluster."""
        if self._connection is not None:
            self._connection.close()


class ExpectedHost:
    """A host that is asked for, and then there.

    Attributes:
        name: Its name in the job.
        identity: By which the program knows it; "" before that was asked.
        group: The hosts that were asked for together with it, and itself.
        place: By what the cluster knows the machine that it has for it; "" before it has.
        address: Of its machine; "" before it is known.
        remote: The host, when its agent is spoken with.
        lost: Whether its connection has ended by itself.
    """

    def __init__(self, provider: ArrivingProvider, name: str, ready: Ready, failed: Failed) -> None:
        self._provider = provider
        self.name = name
        self.ready = ready
        self._failed = failed
        self.identity = self.place = self.address = ""
        self.group: list[ExpectedHost] = [self]
        self.remote: _ArrivedHost | None = None
        self.lost = False
        self._connection: ClusterConnection | None = None
        self._fd = -1
        self._reason: str | None = None  # the cluster's
        self._over = False
        self._waiting: Callable[[], None] | None = None

    def asked(self, connection: ClusterConnection, identity: str, group: list[ExpectedHost]) -> None:
        """The program has been asked for it."""
        self._connection, self.identity, self.group = connection, identity, group

    def arrived(self, fd: int) -> None:
        """Its connection is there."""
        if self._over:
            os.close(fd)
            return
        self._fd = fd
        self._provider.arrived(self)

    @property
    def over(self) -> bool:
        """Whether it is not waited for any more: it is there, or not needed."""
        return self._over

    @property
    def peer(self) -> str:
        """The address from which it has connected; "" if it has not."""
        if self._fd < 0:
            return ""
        with socket.socket(fileno=os.dup(self._fd)) as connection:
            try:
                return str(connection.getpeername()[0])
            except OSError:  # it is gone already, which is read from it
                return "127.0.0.1"

    def told(self, event: Event) -> None:
        """The program says something of it."""
        if event["event"] == "failed":
            self.fail(event["reason"])
        elif event["event"] == "ended":
            self._reason = event["reason"]
            if self._waiting is not None:
                self._waiting()
            self.fail(self._reason or f"what held its place on {self._provider.title} has ended")
        else:
            self._provider.told_of(self, event)

    def begin(self) -> None:
        """Speak with its agent, if it has arrived."""
        if self._fd < 0 or self._over:
            return
        fd, self._fd = self._fd, -1
        self._over = True
        assert self._connection is not None
        self.remote = _ArrivedHost(
            self._provider.loop,
            self.name,
            fd,
            fd,
            why=self._why,
            root=self._provider.root(self.name),
            address=self.address,
            caller_address=self._connection.caller_address,
            interface="",
            ready=self._came,
            failed=self._refuse,
            silence=self._provider.given.silence,
        )

    def _came(self, remote: RemoteHost) -> None:
        theirs, ours = remote.facts.python_version.split(".")[:2], [str(number) for number in sys.version_info[:2]]
        if theirs == ours:
            self._provider.came(self, remote)
            return
        remote.close()
        self._refuse(
            f"its Python is {'.'.join(theirs)}, and this is {'.'.join(ours)}; name another one with "
            "backend_options={'python': …}"
        )

    def fail(self, reason: str) -> None:
        """It does not come."""
        if not self._over:
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self.release()
        self._failed(f"{where}: {reason}" if (where := self._provider.where(self)) else reason)

    def release(self) -> None:
        """It is not needed any more."""
        self._over = True
        self.remote = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._connection is not None and self.identity:
            self._connection.release(self)

    def _why(self, reason: str, then: Callable[[str], None]) -> None:
        """Find out why the connection has ended: the cluster may have a word for it."""
        self.lost = True

        def told() -> None:
            timer.cancel()
            self._waiting = self.remote = None
            why = f"{reason} ({self._reason})" if self._reason else reason
            then(why)
            self._provider.lost(self, why)

        self._waiting = told
        timer = self._provider.loop.call_later(0.0 if self._reason is not None else self._provider.why_s, told)

    def end(self, reason: str) -> None:
        """Have it lost, for a reason that is known."""
        if self._waiting is not None:
            self._waiting()
        elif self.remote is not None:
            remote, self.remote = self.remote, None
            remote.close()
            remote.end(reason)


class _ArrivedHost(RemoteHost):
    """A host whose place a worker of the cluster holds: its end may be why the host is lost."""

    def __init__(self, *arguments: object, why: Callable[[str, Callable[[str], None]], None], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def end(self, reason: str) -> None:
        """It is lost, for a reason that is known."""
        super()._lost(reason)

    def _lost(self, reason: str) -> None:
        self._why(reason, self.end)


class ClusterConnection:
    """The program that speaks with the cluster, and the port at which hosts arrive.

    Attributes:
        caller_address: Where the hosts reach this machine.
    """

    def __init__(self, provider: ArrivingProvider) -> None:
        self._provider = provider
        self.caller_address = ""
        self._arrivals: Arrivals | None = None
        self._hosts: dict[str, ExpectedHost] = {}  # by identity
        self._queued: list[list[ExpectedHost]] = []
        self._program = ClusterClient(
            provider.loop,
            provider.program,
            self._take,
            self._ended,
            protected=provider.protected,
            env=provider.environment(),
            logged=provider.logged,
        )
        self._program.send(op="connect", code=self._program.code, **provider.connecting())

    @property
    def over(self) -> bool:
        """Whether it has ended, or could not join the cluster."""
        return self._program.over

    @property
    def hosts(self) -> list[ExpectedHost]:
        """The hosts that it has been asked for, and that have not been released."""
        return list(self._hosts.values())

    @property
    def joined(self) -> bool:
        """Whether it has joined the cluster."""
        return self._arrivals is not None

    def send(self, **message: Any) -> None:
        """Ask the program for something."""
        self._program.send(**message)

    def acquire(self, group: list[ExpectedHost]) -> None:
        """Ask for hosts that are to be had together, when the cluster has been joined."""
        if self._arrivals is None:
            self._queued.append(group)
            return
        group = [one for one in group if not one.over]  # some were released while the cluster was joined
        if not group:
            return
        hosts = []
        for one in group:
            identity, key = self._arrivals.expect(one.arrived)
            one.asked(self, base64.b64encode(identity).decode(), group)
            self._hosts[one.identity] = one
            hosts.append({"name": one.name, "identity": one.identity, "key": base64.b64encode(key).decode()})
        self._program.send(
            op="acquire",
            hosts=hosts,
            python=self._provider.given.python,
            address=self.caller_address,
            port=self._arrivals.port,
            **self._provider.acquiring(group),
        )

    def release(self, host: ExpectedHost) -> None:
        """A host is not needed any more."""
        if self._hosts.pop(host.identity, None) is not None:
            if self._arrivals is not None:
                self._arrivals.forget(base64.b64decode(host.identity))
            self._program.send(op="release", host=host.identity, lost=host.lost)

    def close(self) -> None:
        """Have it leave the cluster; it does so by itself, and nobody has to wait."""
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
        elif "host" not in event:
            self._provider.told(event)
        elif (host := self._hosts.get(event["host"])) is not None:
            host.told(event)

    def _connected(self, event: Event) -> None:
        self.caller_address = self._provider.given.caller_address or event["address"]
        try:
            self._arrivals = Arrivals(self._provider.loop, self.caller_address)
        except OSError as error:
            self._fail(
                f"nothing can listen at {self.caller_address}, where hosts are to reach this machine "
                f"({error.strerror}); name another address of its with backend_options={{'caller_address': …}}"
            )
            return
        self._provider.connected(event)
        queued, self._queued = self._queued, []
        for group in queued:
            self.acquire(group)

    def _ended(self, said: str) -> None:
        self._fail(
            f"the process that speaks with {self._provider.title} has ended unexpectedly{f': {said}' if said else ''}"
        )

    def _fail(self, reason: str) -> None:
        self.close()
        waiting = [*(one for group in self._queued for one in group), *self._hosts.values()]
        self._queued = []
        self._hosts.clear()
        for one in waiting:
            one.fail(reason)
        self._provider.disconnected(reason)
