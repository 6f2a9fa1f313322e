"""Provide hosts on machines that are reached by ssh."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
from typing import Any, ClassVar

from container.contract.strategies import FRAMEWORKS, MPI, Elastic, ElasticHorovod
from estimators.backends.hosts import shipping
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.environment import PythonEnvironment, is_here
from estimators.backends.hosts.membership import Located, MembershipSource, Polled
from estimators.backends.hosts.provider import (
    Finding,
    Host,
    HostError,
    HostProvider,
    HostUnavailable,
    Placement,
    ProvidedJob,
)
from estimators.backends.hosts.remote import HostSource, RemoteHost
from estimators.backends.openssh import starting
from estimators.backends.openssh.connection import CLOSED, WHY_S, Connections, SshConnection
from estimators.backends.openssh.starting import OurProgram
from estimators.backends.ssh.machines import VARIABLE, SshMachine, SshOptions
from estimators.backends.ssh.pool import LOOK_EVERY_S, MachinePool, OthersHaveThem, fits
from estimators.job import fleets
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.provision.errors import ProvisionError

#: Seconds between two reads of a host file while an elastic job runs.
_LIST_EVERY_S = 2.0
#: Longest delay before machines that have failed are tried again, in seconds.
_LONGEST_PAUSE_S = 60.0
#: Seconds for which a tuner's trial waits for machines.
_TRIAL_WAITS_S = 7 * 86_400.0


@dataclasses.dataclass(eq=False)
class Reservation(HostSource):
    """The reservation of a machine for a host.

    Attributes:
        machine: The machine.
        pool: The machines of the job.
        connection: The connection to the machine, or None before the machine is connected.
        agent: The host agent on the machine, or None before the agent is started.
        identity: The machine's identifier, or "" before the agent has reported the identifier.
    """

    machine: SshMachine
    pool: MachinePool
    connection: SshConnection | None = None
    agent: ChildProcess | None = None
    identity: str = ""

    async def explain(self, reason: str) -> str:
        """Return why the machine was lost: the reason of the broken connection, or the agent's last error message."""
        assert self.connection is not None and self.agent is not None
        await asyncio.sleep(WHY_S)
        self.pool.lost(self.machine)
        ended = self.connection.ended or ""
        text = (ended if ended != CLOSED else "") or self.agent.complaint or ended or reason
        self.connection.close()
        return text


class SshProvider(HostProvider):
    """A provider of hosts on machines that are reached by ssh."""

    name: ClassVar[str] = fleets.SSH
    capabilities: ClassVar[Capabilities] = fleets.FLEETS[fleets.SSH].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self._options = SshOptions.of(job.options.backend_options)
        self._pool = MachinePool(job, self._options)
        self._connections = Connections(job.loop, self._options.settings())
        self._reservations: dict[str, Reservation] = {}  # host -> the reservation of its machine
        self._located = Located()  # the machines that discovery has assigned to hosts
        self._bridges = 0

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: JobOptions) -> list[str]:
        """Return the reasons why the machines or their Python environment are not sufficient for the job."""
        try:
            given = SshOptions.of(options.backend_options)
            machines = given.machines()
            if given.python is None:
                PythonEnvironment.of(given.requirements, **_content(spec, options))
        except ConfigurationError as error:
            return [str(error)]
        except ProvisionError as error:
            return [
                f"no environment can be made on the hosts: {error} Or name the interpreter of an existing "
                "environment: backend_options={'python': …}."
            ]
        if isinstance(spec.strategy, Elastic) and spec.strategy.discovery is not None:
            text = (
                "spare hosts are not possible with discovery, where every host takes part. Leave spares out, or give "
                "a list of machines."
            )
            return [text] if spec.strategy.spares else []
        if not machines:
            return [
                "there are no hosts. Name them with RunOptions(backend_options={'hosts': ['node-1', 'ann@node-2']}), "
                "a 'host_file', $FLEETFIT_HOSTS or `fleetfit hosts add`."
            ]
        small = [machine for machine in machines if not fits(machine, spec)]
        fitting = len(machines) - len(small)
        if spec.instance_count > fitting:
            text = f"instance_count={spec.instance_count}, but the fleet has {fitting} machines"
            if small:
                text += (
                    f" with at least processes_per_host={spec.ranks_per_host} slots; too few slots: "
                    f"{', '.join(f'{machine.name} ({machine.slots})' for machine in small)}"
                )
            return [f"{text}. Add machines."]
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions) -> Placement:
        """Return the placement of the job's hosts on the machines."""
        given = SshOptions.of(options.backend_options)
        fitting = [machine for machine in given.machines() if fits(machine, spec)]
        config = ("-F", str(given.ssh_config)) if given.ssh_config is not None else ()
        words = [[word for word in machine.destination.words() if word != "--"] for machine in fitting]
        places = zip(spec.hosts, itertools.chain(words, itertools.repeat(["HOST"])), strict=False)
        cache = ".cache/fleetfit/hosts"  # relative to the home folder, in which ssh starts commands
        return Placement(
            base_dir=f"/tmp/fleetfit-hosts/{spec.name}/hosts/{{host}}/ml",
            python=given.python or f"{cache}/env/bin/python",
            package=f"{cache}/{shipping.code().name}/container",
            connect={host: ("ssh", *config, *there) for host, there in places},
        )

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
        """Return the options with a list of the machines as ``hosts``.

        The list replaces the name of a host file, an environment variable or a fleet, which exist only on this machine.
        """
        given = dict(options.backend_options)
        machines = SshOptions.of(given).machines()
        if machines:
            given["hosts"] = [machine.to_dict() for machine in machines]
            given.pop("host_file", None)
        return given

    @classmethod
    def patient(cls, options: JobOptions) -> dict[str, Any]:
        """Return the options with a long waiting time for machines that other jobs use."""
        return {"wait": _TRIAL_WAITS_S, **options.backend_options}

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding about the ssh program and the machines of the default fleet."""
        try:
            machines = SshOptions.of({}).machines()
        except ConfigurationError as error:
            return [Finding(name="ssh", ok=False, text=str(error), remedy="Correct the file or the variable.")]
        if shutil.which("ssh") is None:  # no problem for users who have no ssh hosts
            text = "the ssh program is not installed here (apt-get install openssh-client)"
            ok, remedy = (False, "Install it.") if machines else (None, "")
            return [Finding(name="ssh", ok=ok, text=text, remedy=remedy)]
        if not machines:
            text = "ssh is installed. Name hosts with backend_options, $FLEETFIT_HOSTS or `fleetfit hosts add`"
            return [Finding(name="ssh", ok=None, text=text)]
        where = f"${VARIABLE}" if os.environ.get(VARIABLE) else "the default fleet"
        text = f"hosts of {where}: {', '.join(machine.name for machine in machines)}"
        return [Finding(name="ssh", ok=True, text=text)]

    # --- hosts ---

    async def acquire(self, name: str) -> Host:
        """Start an agent on a free machine, and return the host.

        If a discovery script or file assigns a machine to the host, the agent is started on that machine.

        Raises:
            HostUnavailable: no machine can be used. The message has the reasons.
        """
        located = await self._located.wait(name) if _discovers(self.spec) else self._located.get(name)
        pause: float | None = None  # seconds before machines are reserved for all hosts together
        if self._options.wait and located is None:
            pause = 0.0
            self._pool.begin_to_wait()
        while True:
            if pause is not None:
                await self._pool.until_all_have_one(name, pause)
            tried: dict[str, str] = {}  # machine -> why it cannot be used
            try:
                return await self._try_machines(name, located, tried)
            except OthersHaveThem:
                if not self._pool.waits:
                    raise
                pause = min(2 * max(pause or 0.0, LOOK_EVERY_S), _LONGEST_PAUSE_S) if tried else LOOK_EVERY_S

    async def _try_machines(self, name: str, located: str | None, tried: dict[str, str]) -> Host:
        """Start an agent on the first machine that can be used, and return the host. Each machine is tried once.

        Args:
            name: The name of the host.
            located: The name of the machine that is assigned to the host, or None for any machine.
            tried: The machines that cannot be used, each with the reason. This method adds the machines that it has
                tried.

        Raises:
            HostUnavailable: no machine can be used. The message has the reasons.
        """
        while True:
            try:
                reservation = self._reservations[name] = Reservation(self._pool.take(name, tried, located), self._pool)
            except HostUnavailable as error:
                reasons = [f"{machine}: {reason}" for machine, reason in tried.items()]
                raise type(error)("; ".join(filter(None, [*reasons, str(error)]))) from None
            try:
                return await self._start(name, reservation)
            except HostError as error:
                tried[reservation.machine.name] = str(error)
                self._give_up(name, reservation)
            except BaseException:
                self._give_up(name, reservation)
                raise

    async def _start(self, name: str, reservation: Reservation) -> RemoteHost:
        """Connect to a machine, start an agent on the machine, and return the host.

        Raises:
            HostError: the agent cannot be started. The message has the reason.
        """
        machine, options = reservation.machine, self._options
        connection = reservation.connection = await self._connect(machine)
        try:
            address = self._address(machine, connection)
            program = reservation.agent = await starting.start(
                connection, self._program, lambda text: self.job.tell(f"{machine.name}: {text}")
            )
            host = await RemoteHost.connect(
                self.loop,
                name,
                program.output,
                program.input,
                root=self.new_root(name),
                address=address,
                caller_address=options.caller_address or connection.caller_address,
                interface="",
                silence=options.silence,
                source=reservation,
            )
            known = {other.identity: other.machine.name for other in self._reservations.values()}
            reservation.identity = host.facts.identity
            if reservation.identity and reservation.identity in known:
                host.close()
                other = known[reservation.identity]
                raise HostError(f"it is the same machine as {other}. Name each machine once, with all its slots")
        except BaseException:
            connection.close()
            raise
        return host

    async def _connect(self, machine: SshMachine) -> SshConnection:
        """Connect to a machine, and return the connection."""
        return await self._connections.open(
            machine.destination, on_late=lambda text: self.job.tell(f"{machine.name}: {text}")
        )

    def _address(self, machine: SshMachine, connection: SshConnection) -> str:
        """Return the address at which the other hosts reach a machine.

        Raises:
            HostError: the machine's IPv4 address is not known.
        """
        address = machine.address or connection.address
        if ":" in address and len(self.spec.hosts) == 1 and not isinstance(self.spec.strategy, Elastic):
            return "127.0.0.1"  # no other host has to reach it
        if not address or ":" in address:
            said = f"the host was reached by IPv6 ({address})" if address else "its sshd does not report its address"
            raise HostError(
                f"{said}. In the host file, set address=… to the IPv4 address at which the hosts reach this host"
            )
        return address

    @functools.cached_property
    def _program(self) -> OurProgram:
        """Return the agent as a program to start, with the Python environment in which the agent runs."""
        python, others, environment = self._options.python, [], None
        if python is None:
            content = _content(self.spec, self.job.options)
            environment = {"requirements": self._options.requirements, **content}
            try:
                python = PythonEnvironment.of(self._options.requirements, **content).name
            except ProvisionError as error:
                raise HostError(f"no environment can be made there: {error}") from None
            if self._options.requirements is None:
                others = _larger_environments(**content)
        return OurProgram(
            code=shipping.code(), python=python, others=others, words=("agent", "host"), environment=environment
        )

    async def bridge(self, host: Host, other: Host, port: int) -> int:
        """Forward a port of a host's loopback address to a port of another host, through the ssh connections to both.

        See :meth:`HostProvider.bridge`.
        """
        near, far = (
            reservation.connection if (reservation := self._reservations.get(one.name)) else None
            for one in (host, other)
        )
        if near is None or far is None:
            raise HostError("the connection to one of the two hosts was lost")
        self._bridges += 1
        here = near.folder / f"bridge-{self._bridges}"
        await far.forward(here, f"{other.address}:{port}")
        return await near.forward_back(here)

    def _give_up(self, host: str, reservation: Reservation) -> None:
        """Unlock a host's machine.

        The ssh connection is not closed here, because it ends together with the host's agent.
        """
        if self._reservations.get(host) is reservation:  # false after close()
            del self._reservations[host]
            self._pool.give_back(reservation.machine)

    def release(self, host: Host) -> None:
        """Unlock the host's machine."""
        self._give_up(host.name, self._reservations[host.name])
        self._located.forget(host.name)

    def close(self) -> None:
        """Unlock all machines, and close all connections. All processes of the job on the machines then end."""
        self._reservations.clear()
        self._pool.close()
        self._connections.close()

    # --- hosts that join and leave ---

    def membership(self) -> MembershipSource | None:
        """Return a source that lists the machines.

        If the machines are not in the option ``hosts``, the source reads them again every two seconds, because a host
        file may change while a job runs.
        """
        every = _LIST_EVERY_S if self._options.hosts is None else None
        return Polled(self.loop, self._pool, title="the fleet", every=every)

    def locate(self, name: str, place: str) -> None:
        """Assign a machine to a host.

        Args:
            name: The name of the host.
            place: The name of the machine in the result of discovery.
        """
        self._located.locate(name, place)


def _discovers(spec: TrainingJobSpec) -> bool:
    return isinstance(spec.strategy, Elastic) and spec.strategy.discovery is not None


def _needs_horovod(spec: TrainingJobSpec, options: JobOptions) -> bool:
    """Return whether the job's hosts need Horovod.

    A job with mpirun but without TensorFlow does not need Horovod, because its ranks may communicate through mpi4py.
    """
    if isinstance(spec.strategy, MPI):
        return "tensorflow" in options.frameworks
    return isinstance(spec.strategy, ElasticHorovod)


def _content(spec: TrainingJobSpec, options: JobOptions) -> dict[str, Any]:
    """Return the frameworks for the environment of a job's hosts, and whether the environment needs Horovod."""
    # If PyTorch is missing here, do not require it: the job's requirements.txt may install it on the hosts.
    frameworks = [name for name in options.frameworks if name != "torch" or is_here(name)]
    return {"frameworks": frameworks, "horovod": _needs_horovod(spec, options)}


def _larger_environments(frameworks: list[str], horovod: bool) -> list[str]:
    """Return the names of environments with more frameworks than the job needs. The job can use them, too."""
    found = []
    for larger in (*((name,) for name in FRAMEWORKS), tuple(FRAMEWORKS)):
        if set(frameworks) < set(larger):
            with contextlib.suppress(ProvisionError):  # such an environment cannot be created
                found.append(PythonEnvironment.of(None, frameworks=larger, horovod=horovod).name)
    return found
