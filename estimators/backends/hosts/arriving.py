"""The common part of providers whose hosts are started by a cluster's workers (Ray, Spark) and connect back.

A separate program talks to the cluster (:mod:`.cluster_client`): it has the workers start our agent, and reports each
host's fate. The agents connect to a port of this machine (:mod:`.arrivals`).
"""

from __future__ import annotations

import abc
import asyncio
import base64
import dataclasses
import ipaddress
import os
import re
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from container.contract.rules import above_0, interpreter, option, read, refuse
from container.contract.strategies import MPI, Elastic
from estimators.backends.hosts import shipping
from estimators.backends.hosts.arrivals import Arrivals, Expected
from estimators.backends.hosts.cluster_client import ClusterClient, ProgramEnded
from estimators.backends.hosts.provider import Host, HostError, HostProvider, HostUnavailable, Placement, ProvidedJob
from estimators.backends.hosts.remote import SILENCE_S, HostSource, RemoteHost
from estimators.backends.hosts.waiting import unless
from estimators.job.request import TrainingJobSpec

Event = dict[str, Any]
T = TypeVar("T")
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


class ArrivingProvider(HostProvider):
    """The common part of :class:`HostProvider` for such clusters; what differs by cluster is overridden."""

    #: The engine's name in messages.
    title: ClassVar[str]
    #: The program that talks to the cluster, and the prefix of a message in its log.
    program: ClassVar[Path]
    logged: ClassVar[re.Pattern[str]]
    #: Seconds to wait for the cluster's own reason when a host's connection ends.
    why_s: ClassVar[float]

    def __init__(self, job: ProvidedJob, options: ArrivingOptions) -> None:
        super().__init__(job)
        self.options = options
        self._connection: ClusterConnection | None = None
        self._gang: list[ExpectedHost] = []  # the hosts that are asked for in this turn of the loop
        self._there: dict[str, ExpectedHost] = {}  # by the host's name

    # --- what differs by cluster ---

    @abc.abstractmethod
    def connecting(self) -> dict[str, Any]:
        """Return the cluster's own arguments of ``connect``."""

    @abc.abstractmethod
    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return the cluster's own arguments of ``acquire``."""

    @abc.abstractmethod
    async def started(self, host: ExpectedHost) -> str:
        """Wait until the cluster has started a host that was asked for, and return the host's IP address.

        Raises:
            HostUnavailable: it cannot be started; with the reason.
        """

    def environment(self) -> Mapping[str, str]:
        """Return the program's environment."""
        return os.environ

    def connected(self, event: Event) -> None:
        """Handle that the program has joined the cluster."""

    def told(self, event: Event) -> None:
        """Handle an event that concerns no single host."""

    def noticed(self, host: ExpectedHost, seconds: float) -> None:
        """Handle that the cluster will take a host's machine."""

    def where(self, host: ExpectedHost) -> str:
        """Return where a host is, for the reason of its failure; "" if that is not known."""
        return host.place

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Handle the loss of a host that had connected, of which the job knows."""

    @classmethod
    def placement(
        cls, spec: TrainingJobSpec, given: ArrivingOptions, note: str, *, cpus: int = 1, gpus: int = 0
    ) -> Placement:
        """Describe where the job would run, on machines that are not known in advance."""
        return Placement(
            base_dir=f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{{host}}/ml",
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
        if self._connection is None or self._connection.over.done():
            self._connection = ClusterConnection(self)
        return self._connection

    @property
    def elastic(self) -> bool:
        """Return whether each host is acquired by itself; otherwise those that are asked for at once form a gang."""
        return isinstance(self.spec.strategy, Elastic)

    async def acquire(self, name: str) -> Host:
        """Ask the cluster for a host, and wait until it is there."""
        return await self.get(ExpectedHost(self, name))

    async def get(self, host: ExpectedHost) -> Host:
        """Ask the cluster for a host, and wait until it was started and its agent has answered."""
        try:
            connection = await self._ask(host)
            address = await self.started(host)
            descriptor = (await host.until(host.arrival)).connection.detach()
            host.remote = await RemoteHost.connect(
                self.loop,
                host.name,
                descriptor,
                descriptor,
                root=self.new_root(host.name),
                address=address,
                caller_address=connection.caller_address,
                interface="",
                silence=self.options.silence,
                source=host,
            )
        except HostUnavailable as error:
            host.release()
            reason = str(error) or f"its worker on {self.title} has ended"
            raise HostUnavailable(f"{where}: {reason}" if (where := self.where(host)) else reason) from None
        except BaseException:
            host.release()
            raise
        self._there[host.name] = host
        return host.remote

    async def _ask(self, host: ExpectedHost) -> ClusterConnection:
        """Ask for a host together with the others of this turn of the loop, as soon as the cluster was joined."""
        gang = [] if self.elastic else self._gang
        gang.append(host)
        try:
            await asyncio.sleep(0)  # the others get into the gang
            if gang is self._gang:
                self._gang = []
            connection = host.connection = self.connection
            await connection.until(connection.joined)
        except BaseException:
            gang.remove(host)
            raise
        if not host.group:  # the first one asks for all
            connection.ask(gang)
        return connection

    def refuse_mixed(self, machines: Sequence[str], remedy: str) -> None:
        """Refuse MPI hosts that share some of their machines: mpirun identifies hosts by machine.

        Raises:
            HostUnavailable: they do.
        """
        if isinstance(self.spec.strategy, MPI) and 1 < len(set(machines)) < len(machines):
            raise HostUnavailable(
                f"{self.title} has put the {len(machines)} hosts on {len(set(machines))} machines. MPI needs one "
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


class ExpectedHost(Expected, HostSource):
    """A host from its request to its end.

    Attributes:
        name: The host's name in the job.
        wish: The machine that is requested, in the cluster's words; None for any.
        connection: The connection by which it was requested; None until then.
        group: The gang with which it was requested, itself included; empty until then.
        remote: The connection to its agent; None while it is not there.
        over: The cluster's reason for its end, in the future; empty if the cluster gives none.
        lost: Whether the connection to its agent has ended unexpectedly.
    """

    def __init__(self, provider: ArrivingProvider, name: str, wish: str | None = None) -> None:
        super().__init__(provider.loop)
        self._provider = provider
        self._events: dict[str, asyncio.Future[Event]] = {}
        self.name = name
        self.wish = wish
        self.connection: ClusterConnection | None = None
        self.group: Sequence[ExpectedHost] = ()
        self.remote: RemoteHost | None = None
        self.over: asyncio.Future[HostError] = provider.loop.create_future()
        self.lost = False

    @property
    def place(self) -> str:
        """Return the cluster's name for the host's machine; "" until one was found."""
        placed = self.event("placed")
        return str(placed.result()["node"]) if placed.done() else ""

    def event(self, kind: str) -> asyncio.Future[Event]:
        """Return the program's first event of a kind about the host, in the future."""
        return self._events.setdefault(kind, self._provider.loop.create_future())

    def told(self, event: Event) -> None:
        """Take an event of the program."""
        kind = event["event"]
        if kind in ("failed", "ended"):
            self.end(event["reason"])
        elif kind == "notice":
            self._provider.noticed(self, event["seconds"])
        elif not (first := self.event(kind)).done():
            first.set_result(event)

    def end(self, reason: str) -> None:
        """Note that the host has come to its end on the cluster; the first reason counts."""
        if not self.over.done():
            self.over.set_result(HostUnavailable(reason))

    async def until(self, what: Awaitable[T]) -> T:
        """Wait for something of the host's start.

        Raises:
            HostUnavailable: the host has come to its end; with the reason.
        """
        return await unless(self.over, what)

    async def explain(self, reason: str) -> str:
        """Wait a moment for the cluster's reason for the host's loss, and return the reason with it."""
        self.lost = True
        await asyncio.wait({self.over}, timeout=self._provider.why_s)
        more = (str(self.over.result()) if self.over.done() else "") or self._provider.where(self)
        why = f"{reason} ({more})" if more else reason
        self._provider.loop.call_soon(lambda: self._provider.lost(self, why))  # the job is told first
        return why

    def release(self) -> None:
        """Give the host back."""
        self.remote = None
        if self.arrival.done():
            self.arrival.result().connection.close()  # has no effect where the agent's connection was taken
        if self.connection is not None:
            self.connection.release(self)


class ClusterConnection:
    """Talk to the program, and listen for the hosts.

    Attributes:
        joined: What the hosts arrive at, in the future: when the program has joined the cluster.
        over: Why the program has ended, or could not join the cluster, in the future.
        hosts: The hosts that were requested and not released, by their identities in the messages.
        caller_address: IP address at which the hosts reach this machine; "" until the cluster was joined.
    """

    def __init__(self, provider: ArrivingProvider) -> None:
        self._provider = provider
        self.joined: asyncio.Future[Arrivals] = provider.loop.create_future()
        self.over: asyncio.Future[HostError] = provider.loop.create_future()
        self.hosts: dict[str, ExpectedHost] = {}
        self.caller_address = ""
        self._program = ClusterClient(
            provider.loop,
            provider.program,
            protected=provider.job.protected,
            env=provider.environment(),
            logged=provider.logged,
        )
        self.send(op="connect", code=self._program.code, **provider.connecting())
        self._following = provider.loop.start(self._follow())

    def send(self, **message: Any) -> None:
        """Send a request to the program."""
        self._program.send(**message)

    async def until(self, what: Awaitable[T]) -> T:
        """Wait for something that the program does.

        Raises:
            HostUnavailable: the program has ended; with the reason.
        """
        return await unless(self.over, what)

    def ask(self, gang: Sequence[ExpectedHost]) -> None:
        """Request hosts together; the cluster was joined."""
        arrivals, group, hosts = self.joined.result(), tuple(gang), []
        for one in group:
            one.group = group
            arrivals.expect(one)
            self.hosts[_text(one.identity)] = one
            hosts.append({"name": one.name, "identity": _text(one.identity), "key": _text(one.key)})
        self.send(
            op="acquire",
            hosts=hosts,
            python=self._provider.options.python,
            version="{}.{}".format(*sys.version_info),
            address=self.caller_address,
            port=arrivals.port,
            **self._provider.acquiring(group),
        )

    def release(self, host: ExpectedHost) -> None:
        """Give a host back, if it was requested."""
        if self.hosts.pop(_text(host.identity), None) is not None:
            self.joined.result().forget(host)
            self.send(op="release", host=_text(host.identity), lost=host.lost)

    def close(self) -> None:
        """Let the program leave the cluster, without waiting for it."""
        self._following.cancel()
        self._close()

    def _close(self) -> None:
        self._program.close()
        if self.joined.done():
            self.joined.result().close()

    async def _follow(self) -> None:
        """Pass on what the program says, until it ends or cannot join the cluster."""
        try:
            while True:
                self._take(await self._program.event())
        except HostUnavailable as error:
            reason = str(error)
        except ProgramEnded as error:
            said = f": {error}" if str(error) else ""
            reason = f"the process that talks to {self._provider.title} has ended unexpectedly{said}"
        self._close()
        self.over.set_result(HostUnavailable(reason))
        for host in self.hosts.values():
            if host.remote is None:  # others have connections of their own, whose end is the host's
                host.end(reason)
        self.hosts.clear()

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "refused":
            raise HostUnavailable(event["reason"])
        if kind == "connected":
            self._join(event)
        elif kind == "pending":
            self._provider.job.tell(f"{event['reason']}.")
        elif "host" not in event:
            self._provider.told(event)
        elif (host := self.hosts.get(event["host"])) is not None:
            host.told(event)

    def _join(self, event: Event) -> None:
        self.caller_address = self._provider.options.caller_address or event["address"]
        try:
            arrivals = Arrivals(self._provider.loop, self.caller_address)
        except OSError as error:
            raise HostUnavailable(
                f"this machine cannot listen at {self.caller_address}, its address for the hosts ({error.strerror}). "
                "Name another address with backend_options={'caller_address': …}"
            ) from None
        self._provider.connected(event)
        self.joined.set_result(arrivals)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
