"""The provider: hosts on machines that ssh reaches."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import FRAMEWORKS, MPI, Elastic, ElasticHorovod
from container.system.loop import Loop
from estimators.backends.hosts import shipping
from estimators.backends.hosts.environment import PythonEnvironment, is_here
from estimators.backends.hosts.membership import MembershipSource, Polled
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.backends.ssh.child import Child
from estimators.backends.ssh.connection import CLOSED, Connections, Finished, SshConnection
from estimators.backends.ssh.machines import Machine, SshOptions, folder, parse
from estimators.backends.ssh.starting import Program, Starting
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.provision.errors import ProvisionError

#: How often a file of machines is read while an elastic job runs, in seconds.
_LIST_EVERY_S = 2.0
#: How often it is looked whether machines are free that other jobs have, in seconds.
_LOOK_EVERY_S = 1.0
#: How long until a machine that did not come up is tried again, at the most.
_LONGEST_PAUSE_S = 60.0
#: How long a job that has some of its machines waits for the others.
_HELD_S = 600.0
#: How long a tuner's trial waits for them.
_TRIAL_WAITS_S = 7 * 86_400.0
#: How long after the end of what a connection carries its own end, and why, is told, in seconds.
_WHY_S = 0.1

Ready = Callable[[Host], None]
Failed = Callable[[str], None]


class SshProvider:
    """Hosts on machines that ssh reaches; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = "ssh"
    capabilities: ClassVar[Capabilities] = Capabilities(own_environment=True, heartbeats=True, elastic=True)

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        self._loop = loop
        self._spec = spec
        self._run_options = options
        self._options = SshOptions.of(options.backend_options)
        self._machines = list(self._options.machines())
        self._connections = Connections(loop, self._options.settings())
        self._open: dict[str, SshConnection] = {}  # machine -> its connection, also between attempts
        self._locks: dict[str, int] = {}  # machine -> the lock on it
        self._taken: dict[str, Machine] = {}  # host -> its machine
        self._starts: dict[str, int] = {}  # host -> how often it was started
        self._losses: dict[str, int] = {}  # machine -> how often it was lost
        self._places: dict[str, str] = {}  # host -> the machine that discovery has named for it
        #: What the agents were started with, by machine.
        self.starting: dict[str, Starting] = {}
        #: What makes environments now.
        self.preparing: list[Child] = []
        #: Takes what a host is being prepared with.
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self._bridges = 0
        self._waiting: dict[str, _Acquisition] = {}  # host -> who waits until that is known
        self._reserved: dict[str, int] = {}  # machine -> the lock on one that no host has yet
        self._queue: list[_Acquisition] = []  # who waits until there are machines for all
        self._waits_until = self._held_since = 0.0
        self._said = ""
        #: Whether other jobs had machines when one was last looked for.
        self.busy = False
        self._identities: dict[str, tuple[str, str]] = {}  # host -> what its machine is known by, and is called

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse a job of more hosts or processes than the machines take."""
        try:
            given = SshOptions.of(options.backend_options)
            machines = given.machines()
            if given.python is None:
                _environment(given, spec, options)
        except ConfigurationError as error:
            return [str(error)]
        except ProvisionError as error:
            return [
                f"no environment can be made on the hosts: {error} Or name the interpreter of an existing "
                "environment: backend_options={'python': …}."
            ]
        if _discovers(spec):
            strategy = spec.strategy
            assert isinstance(strategy, Elastic)
            if strategy.spares:
                return ["spare hosts need a list of machines; with discovery, every host takes part. Leave spares out."]
            return []
        if not machines:
            return [
                "there are no hosts. Name them with RunOptions(backend_options={'hosts': ['node-1', 'ann@node-2']}), "
                "a 'host_file', $FLEETFIT_HOSTS or `fleetfit hosts add`."
            ]
        processes = _processes(spec)
        small = [machine for machine in machines if machine.slots is not None and machine.slots < processes]
        fitting = len(machines) - len(small)
        if spec.instance_count > fitting:
            text = f"instance_count={spec.instance_count}, but the fleet has {fitting} machines"
            if small:
                text += (
                    f" with at least processes_per_host={processes} slots; too few slots: "
                    f"{', '.join(f'{machine.name} ({machine.slots})' for machine in small)}"
                )
            return [f"{text}. Add machines."]
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        given = SshOptions.of(options.backend_options)
        fitting = [machine for machine in given.machines() if _fits(machine, spec)]
        places = dict(zip(spec.hosts, fitting, strict=False))
        config = ("-F", str(given.ssh_config)) if given.ssh_config is not None else ()

        def connect(host: str) -> tuple[str, ...]:
            machine = places.get(host)
            words = machine.destination.words() if machine is not None else ["--", "HOST"]
            return ("ssh", *config, *(word for word in words if word != "--"))

        cache = ".cache/fleetfit/hosts"  # below the home, where ssh begins
        return Placement(
            base_dir=lambda host: f"/tmp/fleetfit-hosts/{spec.name}/hosts/{host}/ml",
            python=given.python or f"{cache}/env/bin/python",
            package=f"{cache}/{shipping.code().name}/container",
            connect=connect,
        )

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: RunOptions) -> dict[str, Any]:
        """Name the machines themselves in place of a file, a variable or a fleet of this machine's."""
        given = dict(options.backend_options)
        machines = SshOptions.of(given).machines()
        if machines:
            given["hosts"] = [machine.to_dict() for machine in machines]
            given.pop("host_file", None)
        return given

    @classmethod
    def patient(cls, options: RunOptions) -> dict[str, Any]:
        """Wait for machines that other jobs have."""
        return {"wait": _TRIAL_WAITS_S, **options.backend_options}

    # --- hosts ---

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Start an agent on a machine that nobody has; where discovery names machines, on the one that it names."""
        acquisition = _Acquisition(self, name, ready, failed)
        if _discovers(self._spec) and name not in self._places:
            self._waiting[name] = acquisition
        elif self._options.wait and not self._places:
            self._begin_to_wait()
            self.enqueue(acquisition, 0.0)
        else:
            self._loop.call_later(0, acquisition.next)

    def _begin_to_wait(self) -> None:
        if not self._queue and not self._taken:
            self._waits_until = time.monotonic() + self._options.wait

    def enqueue(self, acquisition: _Acquisition, after: float = _LOOK_EVERY_S) -> None:
        """Let a host wait until there are machines for all that wait."""
        self._queue.append(acquisition)
        if len(self._queue) == 1:
            self._loop.call_later(after, self._reserve)

    @property
    def waits(self) -> bool:
        """Whether a host without a machine is to wait on; not for long where the job holds others from all jobs."""
        limit = min(self._waits_until, self._held_since + _HELD_S) if self._taken else self._waits_until
        return time.monotonic() < limit

    def _reserve(self) -> None:
        """Lock as many machines as the job has hosts; all or none, so that two jobs do not wait for each other."""
        busy = []
        try:
            for machine in self._machines:
                if len(self._reserved) < len(self._queue) and _fits(machine, self._spec):
                    lock, owner = _lock(self._options.fleet, machine.name, self._spec.name)
                    if lock is None:
                        busy.append(f"{machine.name} ({owner})")
                    else:
                        self._reserved[machine.name] = lock
        except OSError:  # why is said where each host tries
            busy = []
        if busy and len(self._reserved) < len(self._queue) and self.waits:
            self._unreserve()
            text = f"waiting for machines: other jobs have {', '.join(busy)}"
            if text != self._said:
                self._said = text
                self.tell(text)
            self._loop.call_later(_LOOK_EVERY_S, self._reserve)
            return
        waiting, self._queue = self._queue, []
        for acquisition in waiting:
            acquisition.next()

    def _unreserve(self) -> None:
        for lock in self._reserved.values():
            os.close(lock)
        self._reserved.clear()

    def membership(self) -> MembershipSource | None:
        """What the list of machines says; hosts may be added to a file of them while a job runs."""
        every = _LIST_EVERY_S if self._options.hosts is None else None
        return Polled(self._loop.call_later, self._listed, title="the fleet", every=every)

    def _listed(self) -> dict[str, int | None]:
        """Read the list again."""
        self._machines = list(self._options.machines())
        return {machine.name: machine.slots for machine in self._machines if _fits(machine, self._spec)}

    def locate(self, name: str, place: str) -> None:
        """Say which machine is to be a host's; it is the name that discovery has for it."""
        self._places[name] = place
        if (acquisition := self._waiting.pop(name, None)) is not None:
            acquisition.next()

    def choose(self, host: str, tried: list[str]) -> tuple[Machine | None, str]:
        """Return a machine for a host and lock it, or say why there is none."""
        if host in self._places:
            try:
                machines = [parse(self._places[host], "discovery")]
            except ConfigurationError as error:
                return None, str(error)
            known = {machine.name: machine for machine in self._machines}
            machines = [known.get(machine.name, machine) for machine in machines]
        else:
            machines = [machine for machine in self._machines if _fits(machine, self._spec)]
            machines.sort(key=lambda machine: (machine.name not in self._reserved, self._losses.get(machine.name, 0)))
        busy = []
        for machine in machines:
            if machine.name in tried or machine.name in self._locks:
                continue
            lock, owner = self._reserved.pop(machine.name, None), ""
            if lock is None:
                lock, owner = _lock(self._options.fleet, machine.name, self._spec.name)
            if lock is None:
                busy.append(f"{machine.name} ({owner})")
                continue
            self._locks[machine.name] = lock
            if not self._taken:
                self._held_since = time.monotonic()
            self._taken[host] = machine
            return machine, ""
        self.busy = bool(busy)
        if busy:
            return None, f"no machine is free: other jobs have {', '.join(busy)}. Wait for them, or add hosts"
        if tried:
            return None, ""
        return None, "no machine is free: this job has all of them. Add hosts"

    def bridge(self, host: Host, other: Host, port: int, done: Callable[[int, str], None]) -> None:
        """Lead connections to a port of a host's loopback address to one of another host, through both ssh."""
        ways = [self._open.get(machine.name) for machine in (self._taken[host.name], self._taken[other.name])]
        near, far = ways
        if near is None or far is None:
            done(0, "the connection to one of the two hosts was lost")
            return
        self._bridges += 1
        here = near.folder / f"bridge-{self._bridges}"

        def forwarded(finished: Finished) -> None:
            if finished.code == 0:
                near.forward_back(here, done)
            else:
                done(0, finished.last_line)

        far.forward(here, f"{other.address}:{port}", forwarded)

    def give_up(self, host: str) -> None:
        """A host's machine is not its any more."""
        machine = self._taken.pop(host, None)
        self._identities.pop(host, None)
        if machine is not None:
            self._open.pop(machine.name, None)  # it ends with the host's agent: another host there needs a new one
            lock = self._locks.pop(machine.name, None)
            if lock is not None:
                os.close(lock)

    def connect(self, machine: Machine, ready: Callable[[SshConnection], None], failed: Failed) -> None:
        """Give the connection to a machine; one that is there already is used again."""
        known = self._open.get(machine.name)
        if known is not None and known.ended is None:
            ready(known)
            return

        def connected(connection: SshConnection) -> None:
            self._open[machine.name] = connection
            ready(connection)

        connection = self._connections.open(machine.destination, connected, failed)
        connection.on_late = lambda text: self.tell(f"{machine.name}: {text}")

    def known_as(self, host: str, machine: Machine, identity: str) -> str | None:
        """Return by which other name the job has a machine already; else note that a host has it."""
        other = next((name for known, name in self._identities.values() if known == identity and identity), None)
        if other is None:
            self._identities[host] = (identity, machine.name)
        return other

    def root(self, host: str) -> str:
        """Return a folder for a host that no agent has had: one that is cut off may still remove its own."""
        count = self._starts[host] = self._starts.get(host, 0) + 1
        job = self._spec.name if count == 1 else f"{self._spec.name}.{count}"
        return f"{job}/hosts/{host}"

    def lost(self, machine: Machine, connection: SshConnection, complaint: str, reason: str) -> str:
        """A machine is gone: another one is taken first from now on, and a new connection made.

        Returns:
            Why: what ended the connection, if that was not the end of the agent; else what the agent complained of.
        """
        self._losses[machine.name] = self._losses.get(machine.name, 0) + 1
        broken = connection.ended if connection.ended != CLOSED else ""
        text = broken or complaint or connection.ended or reason
        connection.close()
        return text

    @functools.cached_property
    def environment(self) -> str:
        """The name of the environment that a job runs in on its machines.

        Raises:
            ProvisionError: what is installed here is not enough.
        """
        return _environment(self._options, self._spec, self._run_options).name

    @functools.cached_property
    def larger_environments(self) -> list[str]:
        """The names of environments with which the job runs as well: those that have more frameworks."""
        if self._options.requirements is not None:
            return []
        mine, found = set(_frameworks(self._run_options)), []
        for larger in (*((name,) for name in FRAMEWORKS), tuple(FRAMEWORKS)):
            if mine < set(larger):
                with contextlib.suppress(ProvisionError):  # there can be none
                    needed = _needs_horovod(self._spec, self._run_options)
                    found.append(PythonEnvironment.of(None, frameworks=larger, horovod=needed).name)
        return found

    @property
    def asked_environment(self) -> dict[str, Any]:
        """What the program that makes environments is told."""
        return {"requirements": self._options.requirements, **_content(self._spec, self._run_options)}

    @property
    def alone(self) -> bool:
        """Whether the job has one host, which no other has to reach."""
        return len(self._spec.hosts) == 1 and not isinstance(self._spec.strategy, Elastic)

    @property
    def loop(self) -> Loop:
        """The supervisor's loop."""
        return self._loop

    @property
    def options(self) -> SshOptions:
        """What the job asks of its machines."""
        return self._options

    def release(self, host: Host) -> None:
        """Let others have the machine."""
        self.give_up(host.name)
        self._places.pop(host.name, None)

    def close(self) -> None:
        """Close all connections, at which everything ends on the machines."""
        self._waiting.clear()
        self._queue.clear()
        self._waits_until = 0.0
        self._unreserve()
        for child in self.preparing:
            child.kill()
        for host in list(self._taken):
            self.give_up(host)
        self._connections.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is ssh, and which machines the default fleet has."""
        from estimators.backends.ssh import diagnosis

        return diagnosis.findings()


class _Acquisition:
    """One host that is being started: machines are tried until one will do."""

    def __init__(self, provider: SshProvider, name: str, ready: Ready, failed: Failed) -> None:
        self._provider = provider
        self._name = name
        self._ready = ready
        self._failed = failed
        self._tried: list[str] = []
        self._reasons: list[str] = []
        self._pause = _LOOK_EVERY_S

    def next(self) -> None:
        """Try the next machine."""
        try:
            machine, reason = self._provider.choose(self._name, self._tried)
        except OSError as error:
            machine, reason = None, f"a lock for a machine could not be taken here: {error}"
        if machine is None and self._provider.busy and self._provider.waits:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S) if self._tried else _LOOK_EVERY_S
            self._tried.clear()
            self._reasons.clear()
            self._provider.enqueue(self, self._pause)
            return
        if machine is None:
            self._failed("; ".join([*self._reasons, *([reason] if reason else [])]))
            return
        self._tried.append(machine.name)
        try:
            self._provider.connect(
                machine, lambda connection: self._start(machine, connection), lambda text: self._not(machine, text)
            )
        except OSError as error:
            self._not(machine, f"a folder for ssh's sockets could not be made here: {error}")

    def _not(self, machine: Machine, text: str) -> None:
        self._reasons.append(f"{machine.name}: {text}")
        self._provider.give_up(self._name)
        self.next()

    def _start(self, machine: Machine, connection: SshConnection) -> None:
        options = self._provider.options
        address = machine.address or connection.address
        if ":" in address and self._provider.alone:
            address = "127.0.0.1"  # nobody else has to reach it
        if not address or ":" in address:
            said = f"the host was reached by IPv6 ({address})" if address else "its sshd does not report its address"
            self._not(machine, f"{said}; set address=… in the host file to the IPv4 address at which hosts reach it")
            return
        last: list[Finished] = []

        def why(reason: str) -> str:
            complaint = last[0].last_line if last and last[0].errors.strip() else ""
            return self._provider.lost(machine, connection, complaint, reason)

        def ready(host: RemoteHost) -> None:
            other = self._provider.known_as(self._name, machine, host.facts.identity)
            if other is None:
                self._ready(host)
                return
            host.on_lost = lambda reason: None
            host.close()
            self._not(machine, f"it is the same machine as {other}: name each machine once, with all its slots")

        def started(read: int, write: int) -> None:
            SshHost(
                self._provider.loop,
                self._name,
                read,
                write,
                why=why,
                root=self._provider.root(self._name),
                address=address,
                caller_address=options.caller_address or connection.caller_address,
                interface="",
                ready=ready,
                failed=lambda text: self._not(machine, text),
                silence=options.silence,
            )

        try:
            python = options.python or self._provider.environment
        except ProvisionError as error:
            self._not(machine, f"no environment can be made there: {error}")
            return
        made = options.python is None
        program = Program(
            code=shipping.code(),
            python=python,
            others=self._provider.larger_environments if made else (),
            words=("agent", "host"),
            environment=self._provider.asked_environment if made else None,
        )
        starting = Starting(
            self._provider.loop,
            connection,
            program,
            started=started,
            failed=lambda text: self._not(machine, text),
            on_end=last.append,
            say=lambda text: self._provider.tell(f"{machine.name}: {text}"),
            children=self._provider.preparing,
        )
        self._provider.starting[machine.name] = starting
        starting.begin()


class SshHost(RemoteHost):
    """A host whose connection is ssh's: why that ended is why the host is lost."""

    def __init__(self, *arguments: object, why: Callable[[str], str], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def _lost(self, reason: str) -> None:
        self._loop.call_later(_WHY_S, lambda: super(SshHost, self)._lost(self._why(reason)))


def _discovers(spec: TrainingJobSpec) -> bool:
    return isinstance(spec.strategy, Elastic) and spec.strategy.discovery is not None


def _needs_horovod(spec: TrainingJobSpec, options: RunOptions) -> bool:
    """Return whether a host is to have Horovod; mpirun also starts ranks that meet by mpi4py."""
    if isinstance(spec.strategy, MPI):
        return "tensorflow" in options.frameworks
    return isinstance(spec.strategy, ElasticHorovod)


def _frameworks(options: RunOptions) -> list[str]:
    # A requirements.txt may bring the PyTorch that is not installed here.
    return [name for name in options.frameworks if name != "torch" or is_here(name)]


def _content(spec: TrainingJobSpec, options: RunOptions) -> dict[str, Any]:
    return {"frameworks": _frameworks(options), "horovod": _needs_horovod(spec, options)}


def _environment(given: SshOptions, spec: TrainingJobSpec, options: RunOptions) -> PythonEnvironment:
    return PythonEnvironment.of(given.requirements, **_content(spec, options))


def _fits(machine: Machine, spec: TrainingJobSpec) -> bool:
    return machine.slots is None or machine.slots >= _processes(spec)


def _processes(spec: TrainingJobSpec) -> int:
    return spec.strategy.ranks_per_host if spec.strategy is not None else 1


def _lock(fleet: str, machine: str, job: str) -> tuple[int | None, str]:
    """Lock a machine for a job of this user here; or return whose it is."""
    path = folder(fleet) / "locks" / machine.replace("/", "_")
    Path(path.parent).mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 200).decode("utf-8", "replace")
        os.close(lock)
        return None, owner
    os.ftruncate(lock, 0)
    os.pwrite(lock, job.encode(), 0)
    return lock, ""
