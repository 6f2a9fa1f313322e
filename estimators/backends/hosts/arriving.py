"""The common part of providers whose hosts are started by a cluster's workers (Ray, Spark) and connect back.

A separate program talks to the cluster (:mod:`.cluster_client`): it has the workers start our agent, and reports each
host's fate. The agents connect to a port of this machine (:mod:`.arrivals`).
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
from estimators.job.request import TrainingJobSpec

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
    """Hold the ``RunOptions(backend_options={…})`` that all such backends share.

    Attributes:
        python: Path of the hosts' interpreter; None: that of the cluster's workers.
        caller_address: IPv4 address at which the hosts reach this machine; None: the one that the cluster uses.
        silence: Seconds without a message after which a host is lost.
    """

    instance_type: ClassVar[str]
    python: str | None = option(interpreter)
    caller_address: str | None = option(_ip)
    silence: float = option(above_0("a number of seconds above 0"), SILENCE_S)

    @classmethod
    def of(cls: type[Options], given: Mapping[str, Any]) -> Options:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        made: Options = read(cls, given, what=f"option of instance_type {cls.instance_type!r}")
        return made


class ArrivingProvider:
    """Implement :class:`estimators.backends.hosts.provider.HostProvider` but for what differs by cluster."""

    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)
    #: The engine's name in messages.
    title: ClassVar[str]
    #: The program that talks to the cluster, and the prefix of a message in its log.
    program: ClassVar[Path]
    logged: ClassVar[re.Pattern[str]]
    #: Seconds to wait for the cluster's own reason when a host's connection ends.
    why_s: ClassVar[float]

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: ArrivingOptions) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self.loop = loop
        self.spec = spec
        self.options = options
        self._connection: ClusterConnection | None = None
        self._wanted: list[ExpectedHost] = []
        self._starts: Counter[str] = Counter()
        self._there: dict[str, ExpectedHost] = {}  # by the host's name

    # --- what differs by cluster ---

    def connecting(self) -> dict[str, Any]:
        """Return the cluster's own arguments of ``connect``."""
        raise NotImplementedError

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return the cluster's own arguments of ``acquire``."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the program's environment."""
        return os.environ

    def connected(self, event: Event) -> None:
        """Handle that the program has joined the cluster."""

    def disconnected(self, reason: str) -> None:
        """Handle that the program could not join, or has ended."""

    def told(self, event: Event) -> None:
        """Handle an event that concerns no single host."""

    def told_of(self, host: ExpectedHost, event: Event) -> None:
        """Handle an event that only this cluster's hosts have."""

    def placed(self, host: ExpectedHost) -> None:
        """Handle that the cluster has found a machine for a host."""

    def arrived(self, host: ExpectedHost) -> None:
        """Handle that a host has connected."""
        host.begin()

    def where(self, host: ExpectedHost) -> str:
        """Return where a host is, for the reason of its failure; "" if that is not known."""
        return host.place

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Handle the loss of a host that had connected."""

    @classmethod
    def placement(
        cls, spec: TrainingJobSpec, given: ArrivingOptions, note: str, *, cpus: int = 1, gpus: int = 0
    ) -> Placement:
        """Describe where the job would run, on machines that are not known in advance."""
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
        """Return the connection to the cluster; a new one if the last has ended."""
        if self._connection is None or self._connection.over:
            self._connection = ClusterConnection(self)
        return self._connection

    @property
    def elastic(self) -> bool:
        """Return whether each host is acquired by itself; otherwise those that are asked for at once form a gang."""
        return isinstance(self.spec.strategy, Elastic)

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask the cluster for a host."""
        self.submit(ExpectedHost(self, name, ready, failed))

    def submit(self, host: ExpectedHost) -> None:
        """Ask for a host at the end of this turn of the loop, together with others of the same turn."""
        self._wanted.append(host)
        if len(self._wanted) == 1:
            self.loop.call_later(0, self._ask)

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, []
        for group in [[one] for one in wanted] if self.elastic else [wanted]:
            self.connection.acquire(group)

    def root(self, host: str) -> str:
        """Return an unused folder for a host: an agent that was cut off may still be removing its own."""
        self._starts[host] += 1
        count = self._starts[host]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{host}"

    def came(self, host: ExpectedHost, remote: Host) -> None:
        """Hand a ready host to the job."""
        self._there[host.name] = host
        host.ready(remote)

    def refuse_mixed(self, hosts: Sequence[ExpectedHost], machines: Sequence[str], remedy: str) -> None:
        """Refuse MPI hosts that share some of their machines: mpirun identifies hosts by machine."""
        if isinstance(self.spec.strategy, MPI) and 1 < len(set(machines)) < len(hosts):
            for host in list(hosts):
                host.fail(
                    f"{self.title} has put the {len(hosts)} hosts on {len(set(machines))} machines. MPI needs one "
                    f"machine for all hosts, or a separate machine for each host; {remedy}"
                )

    def release(self, host: Host) -> None:
        """Give a host's resources back to the cluster."""
        expected = self._there.pop(host.name, None)
        if expected is not None:
            expected.release()

    def close(self) -> None:
        """Leave the cluster."""
        if self._connection is not None:
            self._connection.close()


class ExpectedHost:
    """Follow a host from its request to its end.

    Attributes:
        name: The host's name in the job.
        identity: Its name in the messages to the program; "" until the program was asked.
        group: The gang with which it was requested, itself included.
        place: The cluster's name for its machine; "" until one was found.
        wish: The machine that is requested, in the cluster's words; None for any.
        address: Its machine's IP address; "" until known.
        remote: The connection to its agent; None until then.
        lost: Whether that connection has ended unexpectedly.
    """

    def __init__(self, provider: ArrivingProvider, name: str, ready: Ready, failed: Failed) -> None:
        self._provider = provider
        self.name = name
        self.ready = ready
        self._failed = failed
        self.identity = self.place = self.address = ""
        self.wish: str | None = None
        self.group: list[ExpectedHost] = [self]
        self.remote: _ArrivedHost | None = None
        self.lost = False
        self._connection: ClusterConnection | None = None
        self._fd = -1
        self._reason: str | None = None  # the cluster's, for its end
        self._settled = False  # whether it has arrived, failed or was released
        self._waiting: Callable[[], None] | None = None

    def asked(self, connection: ClusterConnection, identity: str, group: list[ExpectedHost]) -> None:
        """Note that the program was asked for the host."""
        self._connection, self.identity, self.group = connection, identity, group

    def arrived(self, fd: int) -> None:
        """Take the host's connection."""
        if self._settled:
            os.close(fd)
            return
        self._fd = fd
        self._provider.arrived(self)

    @property
    def peer(self) -> str:
        """Return the address from which the host has connected; "" if it has not."""
        if self._fd < 0:
            return ""
        with socket.socket(fileno=os.dup(self._fd)) as connection:
            try:
                return str(connection.getpeername()[0])
            except OSError:  # it is gone already, which is read from it
                return "127.0.0.1"

    def told(self, event: Event) -> None:
        """Handle an event of the host."""
        if event["event"] == "placed":
            self.place = event["node"]
            self._provider.placed(self)
        elif event["event"] == "failed":
            self.fail(event["reason"])
        elif event["event"] == "ended":
            self._reason = event["reason"]
            if self._waiting is not None:
                self._waiting()
            self.fail(self._reason or f"its worker on {self._provider.title} has ended")
        else:
            self._provider.told_of(self, event)

    def begin(self) -> None:
        """Start talking to the agent, if the host has connected."""
        if self._fd < 0 or self._settled:
            return
        fd, self._fd = self._fd, -1
        self._settled = True
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
            ready=lambda remote: self._provider.came(self, remote),
            failed=self._refuse,
            silence=self._provider.options.silence,
        )

    def fail(self, reason: str) -> None:
        """Give up a host that has not arrived."""
        if not self._settled:
            self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self.release()
        self._failed(f"{where}: {reason}" if (where := self._provider.where(self)) else reason)

    def release(self) -> None:
        """Give the host back."""
        self._settled = True
        self.remote = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._connection is not None and self.identity:
            self._connection.release(self)

    def _why(self, reason: str, then: Callable[[str], None]) -> None:
        """Wait a moment for the cluster's reason before the loss is reported."""
        self.lost = True

        def report() -> None:
            timer.cancel()
            self._waiting = self.remote = None
            more = self._reason or self._provider.where(self)
            why = f"{reason} ({more})" if more else reason
            then(why)
            self._provider.lost(self, why)

        self._waiting = report
        timer = self._provider.loop.call_later(0.0 if self._reason is not None else self._provider.why_s, report)

    def end(self, reason: str) -> None:
        """Report the host as lost, for a known reason."""
        if self._waiting is not None:
            self._waiting()
        elif self.remote is not None:
            remote, self.remote = self.remote, None
            remote.close()
            remote.end(reason)


class _ArrivedHost(RemoteHost):
    """Report a loss only after the cluster was asked for its reason."""

    def __init__(self, *arguments: object, why: Callable[[str, Callable[[str], None]], None], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def end(self, reason: str) -> None:
        """Report the loss."""
        super()._lost(reason)

    def _lost(self, reason: str) -> None:
        self._why(reason, self.end)


class ClusterConnection:
    """Talk to the program, and listen for the hosts.

    Attributes:
        caller_address: IP address at which the hosts reach this machine; "" until the cluster was joined.
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
        """Return whether the program has ended, or could not join the cluster."""
        return self._program.over

    @property
    def hosts(self) -> list[ExpectedHost]:
        """Return the hosts that were requested and not released."""
        return list(self._hosts.values())

    @property
    def joined(self) -> bool:
        """Return whether the program has joined the cluster."""
        return self._arrivals is not None

    def send(self, **message: Any) -> None:
        """Send a request to the program."""
        self._program.send(**message)

    def acquire(self, group: list[ExpectedHost]) -> None:
        """Request a gang, as soon as the cluster has been joined."""
        if self._arrivals is None:
            self._queued.append(group)
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
            python=self._provider.options.python,
            version="{}.{}".format(*sys.version_info),
            address=self.caller_address,
            port=self._arrivals.port,
            **self._provider.acquiring(group),
        )

    def release(self, host: ExpectedHost) -> None:
        """Give a host back."""
        if self._hosts.pop(host.identity, None) is not None:
            if self._arrivals is not None:
                self._arrivals.forget(base64.b64decode(host.identity))
            self._program.send(op="release", host=host.identity, lost=host.lost)

    def close(self) -> None:
        """Let the program leave the cluster, without waiting for it."""
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
        self.caller_address = self._provider.options.caller_address or event["address"]
        try:
            self._arrivals = Arrivals(self._provider.loop, self.caller_address)
        except OSError as error:
            self._fail(
                f"this machine cannot listen at {self.caller_address}, its address for the hosts "
                f"({error.strerror}); name another address with backend_options={{'caller_address': …}}"
            )
            return
        self._provider.connected(event)
        queued, self._queued = self._queued, []
        for group in queued:
            self.acquire(group)

    def _ended(self, said: str) -> None:
        self._fail(
            f"the process that talks to {self._provider.title} has ended unexpectedly{f': {said}' if said else ''}"
        )

    def _fail(self, reason: str) -> None:
        self.close()
        waiting = [*(one for group in self._queued for one in group), *self._hosts.values()]
        self._queued = []
        self._hosts.clear()
        for one in waiting:
            one.fail(reason)
        self._provider.disconnected(reason)
