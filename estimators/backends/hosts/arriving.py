"""Implement what the providers for Ray and Spark share. The workers of the Ray or Spark cluster start the hosts.

A separate program communicates with the cluster (:mod:`.cluster_client`). The program makes the workers of
the cluster start agents. An agent is the process that controls a host. The program reports when a host starts, fails or
ends. The agents connect to a port of this machine (:mod:`.arrivals`).
"""

from __future__ import annotations

import abc
import asyncio
import base64
import ipaddress
import os
import re
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from container.contract.frozen import dataclass
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


@dataclass(frozen=True, kw_only=True)
class ArrivingOptions:
    """The ``RunOptions(backend_options={…})`` that the backends for Ray and Spark share.

    Attributes:
        python: The path of the hosts' Python interpreter. The default is the interpreter of the cluster's workers.
        caller_address: The IPv4 address at which the hosts reach this machine. The default is the address that the
            cluster uses.
        silence: The number of seconds without a message from a host after which the host counts as lost.
    """

    instance_type: ClassVar[str]
    python: str | None = option(interpreter)
    caller_address: str | None = option(_ip)
    silence: float = option(above_0("a number of seconds above 0"), SILENCE_S)

    @classmethod
    def of(cls: type[Options], given: Mapping[str, Any]) -> Options:
        """Read the options of the backend from ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown or has the wrong type.
        """
        made: Options = read(cls, given, what=f"option of instance_type {cls.instance_type!r}")
        return made


class ArrivingProvider(HostProvider):
    """A base class of the providers for Ray and Spark. Subclasses override the methods that depend on the cluster."""

    #: The engine's name in messages.
    title: ClassVar[str]
    #: The path of the program that communicates with the cluster, and the prefix of the messages in its log.
    program: ClassVar[Path]
    logged: ClassVar[re.Pattern[str]]
    #: Seconds to wait for the cluster's own reason when a host's connection ends.
    why_s: ClassVar[float]

    def __init__(self, job: ProvidedJob, options: ArrivingOptions) -> None:
        super().__init__(job)
        self.options = options
        self._connection: ClusterConnection | None = None
        self._gang: list[ExpectedHost] = []  # the hosts that were requested in this iteration of the event loop
        self._there: dict[str, ExpectedHost] = {}  # connected hosts, by name

    # --- overridden for each cluster ---

    @abc.abstractmethod
    def connecting(self) -> dict[str, Any]:
        """Return those arguments of the request ``connect`` that differ between Ray and Spark."""

    @abc.abstractmethod
    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return those arguments of the request ``acquire`` that differ between Ray and Spark.

        Args:
            group: The hosts of the request.
        """

    @abc.abstractmethod
    async def started(self, host: ExpectedHost) -> str:
        """Wait until the cluster has started a requested host, and return the host's IP address.

        Raises:
            HostUnavailable: the host cannot be started. The message has the reason.
        """

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the program that communicates with the cluster."""
        return os.environ

    def connected(self, event: Event) -> None:
        """Handle the program's report that it has connected to the cluster."""

    def told(self, event: Event) -> None:
        """Handle an event of the program that concerns no single host."""

    def noticed(self, host: ExpectedHost, seconds: float) -> None:
        """Handle the notice that the cluster will remove a host's machine after ``seconds`` seconds."""

    def where(self, host: ExpectedHost) -> str:
        """Return the name of a host's machine for error messages. Return "" if the machine is not known."""
        return host.place

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Handle the loss of a connected host. The job already knows about the loss when this method is called."""

    @classmethod
    def described(
        cls, spec: TrainingJobSpec, given: ArrivingOptions, note: str, *, cpus: int = 1, gpus: int = 0
    ) -> Placement:
        """Return the placement of hosts on machines that are not known in advance.

        Args:
            spec: The job.
            given: The options of the backend.
            note: A description of the requested resources, for the user.
            cpus: The number of processors of each host.
            gpus: The number of GPUs of each host.
        """
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
        """Return the connection to the cluster. If the last connection is closed, open a new connection."""
        if self._connection is None or self._connection.over.done():
            self._connection = ClusterConnection(self)
        return self._connection

    @property
    def elastic(self) -> bool:
        """Return whether the job is elastic. The hosts of an elastic job are acquired one by one.

        In other jobs, all hosts that are requested at the same time form a gang and are started together.
        """
        return isinstance(self.spec.strategy, Elastic)

    async def acquire(self, name: str) -> Host:
        """Request a host from the cluster, wait until the host has connected, and return the host."""
        return await self.get(ExpectedHost(self, name))

    async def get(self, host: ExpectedHost) -> Host:
        """Request a host from the cluster, wait until its agent has connected and answered, and return the host.

        Raises:
            HostUnavailable: the host cannot be started. The message has the reason.
        """
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
        """Wait until the program has connected to the cluster, and request a host.

        If the job is not elastic, all hosts that are requested in the same iteration of the event loop form a gang. The
        cluster gets one request for the whole gang.
        """
        gang = [] if self.elastic else self._gang
        gang.append(host)
        try:
            await asyncio.sleep(0)  # lets the other hosts of this iteration join the gang
            if gang is self._gang:
                self._gang = []
            connection = host.connection = self.connection
            await connection.until(connection.joined)
        except BaseException:
            gang.remove(host)
            raise
        if not host.group:  # the first host of the gang requests all of them
            connection.ask(gang)
        return connection

    def refuse_mixed(self, machines: Sequence[str], remedy: str) -> None:
        """Refuse hosts of an MPI job if some of them share a machine and others do not.

        mpirun identifies a host by its machine.

        Args:
            machines: The machine of each host.
            remedy: The remedy for the error message.

        Raises:
            HostUnavailable: some of the hosts share a machine and others do not.
        """
        if isinstance(self.spec.strategy, MPI) and 1 < len(set(machines)) < len(machines):
            raise HostUnavailable(
                f"{self.title} has put the {len(machines)} hosts on {len(set(machines))} machines. MPI needs one "
                f"machine for all hosts, or a separate machine for each host; {remedy}"
            )

    def release(self, host: Host) -> None:
        """Release a host's resources on the cluster."""
        expected = self._there.pop(host.name, None)
        if expected is not None:
            expected.release()

    def close(self) -> None:
        """Disconnect from the cluster."""
        if self._connection is not None:
            self._connection.close()


class ExpectedHost(Expected, HostSource):
    """A host, from its request until its end.

    Attributes:
        name: The host's name in the job.
        wish: The requested machine, by the cluster's name for it. None for any machine.
        connection: The connection to the cluster through which the host was requested, or None before the request.
        group: All hosts that were requested together, including this host. The group is empty before the request.
        remote: The connection to the host's agent, or None while the agent is not connected.
        over: A future that is done when the host has ended on the cluster, for whatever reason. The result of the
            future is a ``HostUnavailable`` error, which the future does not raise. The error's message is the cluster's
            reason, or empty if the cluster gives none.
        lost: Whether the connection to the host's agent has ended unexpectedly.
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
        """Return the cluster's name for the host's machine, or "" until the cluster has assigned a machine."""
        placed = self.event("placed")
        return str(placed.result()["node"]) if placed.done() else ""

    def event(self, kind: str) -> asyncio.Future[Event]:
        """Return a future whose result is the program's first event of the kind ``kind`` about the host."""
        return self._events.setdefault(kind, self._provider.loop.create_future())

    def told(self, event: Event) -> None:
        """Handle an event of the program about the host."""
        kind = event["event"]
        if kind in ("failed", "ended"):
            self.end(event["reason"])
        elif kind == "notice":
            self._provider.noticed(self, event["seconds"])
        elif not (first := self.event(kind)).done():
            first.set_result(event)

    def end(self, reason: str) -> None:
        """Record that the host has ended on the cluster. Only the first reason is kept."""
        if not self.over.done():
            self.over.set_result(HostUnavailable(reason))

    async def until(self, what: Awaitable[T]) -> T:
        """Wait for ``what``, a step of the host's start, and return the step's result.

        Raises:
            HostUnavailable: the host has ended. The message has the reason.
        """
        return await unless(self.over, what)

    async def explain(self, reason: str) -> str:
        """Record that the host is lost, and return the reason for the user, with the cluster's own reason added.

        Wait up to ``why_s`` seconds for the cluster's reason. After the job was told about the loss, call
        :meth:`ArrivingProvider.lost`.

        Args:
            reason: The reason why the connection to the host's agent has ended.
        """
        self.lost = True
        await asyncio.wait({self.over}, timeout=self._provider.why_s)
        more = (str(self.over.result()) if self.over.done() else "") or self._provider.where(self)
        why = f"{reason} ({more})" if more else reason
        self._provider.loop.call_soon(lambda: self._provider.lost(self, why))  # runs after the job was notified
        return why

    def release(self) -> None:
        """Release the host on the cluster. Close its connection, unless a :class:`RemoteHost` has taken it over."""
        self.remote = None
        if self.arrival.done():
            self.arrival.result().connection.close()  # has no effect if the agent's connection was taken over
        if self.connection is not None:
            self.connection.release(self)


class ClusterConnection:
    """A connection to the program that communicates with the cluster, and the socket to which the hosts connect.

    Attributes:
        joined: A future whose result is the listening socket. The future is done when the program has connected to the
            cluster.
        over: A future that is done when the program has ended or could not connect to the cluster. Its result is an
            error with the reason.
        hosts: The hosts that were requested and not released, by identity. The program's messages refer to a host by
            its identity.
        caller_address: The IP address at which the hosts reach this machine, or "" until the program has connected to
            the cluster.
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
        """Wait for ``what``, a step of the program, and return the step's result.

        Raises:
            HostUnavailable: the program has ended. The message has the reason.
        """
        return await unless(self.over, what)

    def ask(self, gang: Sequence[ExpectedHost]) -> None:
        """Send one request for several hosts. The program must have connected to the cluster before."""
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
        """Release a host on the cluster if the host was requested."""
        if self.hosts.pop(_text(host.identity), None) is not None:
            self.joined.result().forget(host)
            self.send(op="release", host=_text(host.identity), lost=host.lost)

    def close(self) -> None:
        """Make the program disconnect from the cluster, without waiting for the program."""
        self._following.cancel()
        self._close()

    def _close(self) -> None:
        self._program.close()
        if self.joined.done():
            self.joined.result().close()

    async def _follow(self) -> None:
        """Handle the program's events until the program ends or cannot connect to the cluster."""
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
            if host.remote is None:  # connected hosts end when their own connections end
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
