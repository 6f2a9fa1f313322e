"""The provider: machines that EC2 launches for a job, reached by ssh, and ended when nobody wants them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from container.system import folders, processes
from container.system.loop import Loop
from container.system.removing import remove_tree
from estimators.backends.base import Leftover
from estimators.backends.ec2 import keys, leftovers, plans, prices, requests
from estimators.backends.ec2.api import Ec2Api, Instance, Made
from estimators.backends.ec2.fleet import Ec2Fleet, Events
from estimators.backends.ec2.options import PREFIX, Ec2Options, instance_types
from estimators.backends.hosts import shipping
from estimators.backends.hosts.membership import MembershipSource
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.ssh.command import Destination, SshSettings
from estimators.backends.ssh.connection import Connections, Finished, SshConnection
from estimators.backends.ssh.machines import Machine
from estimators.backends.ssh.provider import Failed, Ready, SshProvider
from estimators.job import instances
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

#: How often a host's lease is extended, in its parts.
_EXTENSIONS = 6
#: How often a host asks for notices, in seconds: what AWS recommends.
_NOTICES_S = 5.0
#: What a rebalance recommendation gives the job to save, in seconds: it has no end of its own.
_REBALANCE_S = 120.0
#: How long the remover waits before it looks again, in the intervals in which the job looks for its hosts.
_REMOVER_POLLS = 1.5
#: How often what the job costs is noted, in seconds.
_NOTED_S = 60.0


class Ec2Provider(SshProvider):
    """Hosts that EC2 launches; see :class:`estimators.backends.hosts.provider.HostProvider`.

    What is done on a host over its connection is :class:`estimators.backends.ssh.provider.SshProvider`'s.
    """

    name: ClassVar[str] = "ec2"
    capabilities: ClassVar[Capabilities] = Capabilities(
        own_environment=True, heartbeats=True, elastic=True, spot=True, searched_by_name=True
    )

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        given = Ec2Options.of(options.backend_options)
        super().__init__(loop, spec, plans.ssh_part(options, given))
        self._given = given
        self._fleet_name = secrets.token_hex(8)
        self._alias = host_alias(self._fleet_name)
        self._tags = requests.tags_of(spec.name, self._fleet_name, leftovers.owner(), given.tags)
        self._folder: Path | None = None
        self._there: dict[str, Host] = {}
        self._machines_of: dict[str, InstanceMachine] = {}  # host -> its machine
        self._dialling: dict[str, SshConnection] = {}  # host -> the connection that is being made
        self._noted = 0.0  # when costs were
        self._instances: dict[str, Instance] = {}  # host -> its instance
        self._booted: dict[str, float] = {}  # host -> until when it must answer
        self._pipe = -1  # at whose end the fleet is removed
        self.limit: Callable[[str], None] = lambda text: None
        self.note: Callable[[Mapping[str, Any]], None] = lambda values: None
        self._closing = False
        self._fleet = Ec2Fleet(
            loop,
            api=self._new_api,
            make=self._make,
            fleet=self._fleet_name,
            tags=self._tags,
            options=given,
            types=instance_types(spec, given),
            spot=bool(spec.spot),
            together=not isinstance(spec.strategy, Elastic),
            waits=bool(spec.spot and spec.stopping.max_wait_s),
            events=Events(
                say=lambda text: self.tell(text),
                gone=self._gone,
                stale=self._stale,
                limit=lambda text: self.limit(text),
                cost=self._cost,
            ),
        )

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse what EC2's machines cannot do, and options that contradict each other."""
        try:
            given = Ec2Options.of(options.backend_options)
            types = instance_types(spec, given)
            Aws(region=given.region, profile=given.profile)  # refuses a missing region
        except ConfigurationError as error:
            return [str(error)]
        found = []
        strategy = spec.strategy
        if isinstance(strategy, Elastic) and strategy.discovery is not None:
            found.append("jobs on EC2 get their hosts from EC2. Leave discovery out, or use instance_type='ssh'.")
        ranks = strategy.ranks_per_host if strategy is not None else 1
        for type_ in types:
            slots = instances.slots(f"{PREFIX}{type_}")
            if slots is not None and ranks > slots:
                found.append(
                    f"processes_per_host={ranks} is more than the {slots} slots of {type_}: use a larger type."
                )
        if not spec.spot:
            found += [
                f"backend_options={{'{name}': …}} is for spot capacity: set use_spot_instances=True, or leave the "
                "option out."
                for name in ("on_demand_base", "on_demand_fallback")
                if getattr(given, name)
            ]
        found += [
            f"{tool} is not installed; install it (apt-get install openssh-client)."
            for tool in ("ssh", "ssh-keygen")
            if shutil.which(tool) is None
        ]
        return found

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run and what that costs; asks EC2 for its prices."""
        return plans.placement(spec, options)

    # --- hosts ---

    def membership(self) -> MembershipSource | None:
        """None: EC2 launches an instance for each host that is asked for. Notices come from the hosts themselves."""
        return None

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Have an instance launched, and start an agent there."""

        def found(instance: Instance) -> None:
            self._instances[name] = instance
            self._booted[name] = time.monotonic() + self._given.boot_timeout
            SshProvider.acquire(
                self,
                name,
                lambda host: there(host, instance),
                lambda text: self._fleet.bad(name, instance.id, text.removeprefix(f"{instance.id}: ")),
            )

        def there(host: Host, instance: Instance) -> None:
            if self._instances.get(name) is not instance:  # it was given up meanwhile
                host.close()
                return
            self._there[name] = host
            self._fleet.ready(name)
            self._watch_notices(name)
            ready(host)

        def lost(text: str) -> None:
            self._stale(name)
            failed(text)

        self._fleet.want(name, found, lost)

    def choose(self, host: str, tried: list[str]) -> tuple[Machine | None, str]:
        """Return the machine that was launched for a host; where that will not do, the fleet launches another one."""
        instance = self._instances.get(host)
        if instance is None or tried:
            return None, ""
        address = instance.public_address if self._given.reach == "public" else instance.private_address
        self._taken[host] = self._machines_of[host] = machine = InstanceMachine(
            instance=instance.id,
            destination=Destination(host=address, user=self._given.user, options={"HostKeyAlias": self._alias}),
            address=instance.private_address,
        )
        return machine, ""

    def connect(self, machine: Machine, ready: Callable[[SshConnection], None], failed: Failed) -> None:
        """Connect to a machine that may still start; from then on its timer is moved on."""
        host = next(host for host, known in self._machines_of.items() if known is machine)

        def connected(connection: SshConnection) -> None:
            self._dialling.pop(host, None)
            self._open[machine.name] = connection
            self._extend(connection, lambda: ready(connection), failed)

        patience = max(1.0, self._booted.get(host, 0.0) - time.monotonic())
        self._dialling[host] = self._connections.open(machine.destination, connected, failed, patience=patience)

    def release(self, host: Host) -> None:
        """A host is not needed any more: its instance is terminated, unless EC2 ends it itself and for nothing."""
        super().release(host)
        left = self._fleet.drop(host.name)
        machine = self._machines_of.get(host.name)
        connection = self._open.get(machine.name) if machine is not None else None
        if left and connection is not None:  # its timer is moved on until then
            self._open.pop(machine.name if machine is not None else "", None)
            connection.on_lost = lambda reason: None
        self._stale(host.name, keep=left)

    def _stale(self, host: str, *, keep: bool = False) -> None:
        """Forget a host's instance, with its connection."""
        self._there.pop(host, None)
        self._instances.pop(host, None)
        self._booted.pop(host, None)
        machine = self._machines_of.pop(host, None)
        connections = [self._dialling.pop(host, None)]
        if machine is not None and not keep:
            connections.append(self._open.pop(machine.name, None))
        for connection in connections:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Let go of the fleet: it is removed by a process that outlives this one."""
        self._closing = True
        self._fleet.close()
        super().close()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether EC2 can be asked."""
        return plans.findings()

    @classmethod
    def leftovers(cls, region: str) -> list[Leftover]:
        """Return the fleets of this user's jobs here."""
        return leftovers.find(region)

    # --- the fleet ---

    def _new_api(self) -> Ec2Api:
        return Ec2Api(region=self._given.region, profile=self._given.profile)

    def _make(self, api: Ec2Api) -> Made:
        """Make what the hosts have in common; in a thread. Whoever removes it is there before."""
        if self._folder is None:
            self._folder = folders.make()
            self._keys = keys.make(self._folder)
            known = self._folder / "known_hosts"
            known.write_text(self._keys.known_hosts(self._alias), encoding="ascii")
            config = Path(self._given.ssh_config or os.devnull).expanduser()
            settings = SshSettings(known_hosts=known, config=config, strict=True, identity=self._keys.login)
            self._connections = Connections(self._loop, settings)
        if self._pipe < 0:
            pid, self._pipe = start_remover(self._fleet_name, api.region, self._given)
            self.protected.add(pid)
        return api.make(
            fleet=self._fleet_name,
            tags=self._tags,
            options=self._given,
            type_=instance_types(self._spec, self._given)[0],
            public_key=self._keys.login_public,
            user_data=requests.user_data(
                host_key=self._keys.host,
                host_key_public=self._keys.host_public,
                first_lease=self._given.first_lease,
            ),
        )

    def _gone(self, host: str, reason: str) -> None:
        """EC2 says that an instance is gone, which its connection may not know yet."""
        there = self._there.get(host)
        if there is not None:
            there.close()
            there.on_lost(reason)

    def _cost(self, cost: prices.Cost) -> None:
        if time.monotonic() - self._noted < _NOTED_S and not self._closing:
            return
        self._noted = time.monotonic()
        self.note({"cost": cost.to_dict()})

    # --- on a host ---

    def _extend(self, connection: SshConnection, then: Callable[[], None], failed: Failed) -> None:
        """Move a host's timer on for as long as its connection is there."""

        def started(read: int, write: int) -> None:
            os.set_blocking(write, False)

            def push() -> None:
                if connection.ended is not None:
                    os.close(read)
                    os.close(write)
                    return
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(write, f"{round(self._given.lease)}\n".encode())
                self._loop.call_later(self._given.lease / _EXTENSIONS, push)

            push()
            then()

        def ended(finished: Finished) -> None:
            failed(f"its shutdown timer cannot be extended: {finished.last_line}")

        connection.start([], started, ended, script=requests.EXTEND)

    def _watch_notices(self, host: str) -> None:
        """Hear of the notices that a host gets."""
        connection = self._open.get(self._machines_of[host].name)
        instance = self._instances[host]
        if connection is None or instance.lifecycle is not requests.Lifecycle.SPOT:
            return
        words = ["agent", "notices", "--imds", self._given.imds, "--every", f"{_NOTICES_S:g}"]
        python = self.starting[self._machines_of[host].name].python

        def started(read: int, write: int) -> None:
            said = bytearray()

            def take() -> None:
                try:
                    data = os.read(read, 1 << 16)
                except BlockingIOError:
                    return
                if not data:
                    self._loop.remove_reader(read)
                    os.close(read)
                    os.close(write)
                    if connection.ended is None:  # what watches there was killed
                        self._loop.call_later(_NOTICES_S, again)
                    return
                said.extend(data)
                while b"\n" in said:
                    line, _, rest = bytes(said).partition(b"\n")
                    said[:] = rest
                    self._noticed(host, instance, line)

            os.set_blocking(read, False)
            self._loop.add_reader(read, take)

        def again() -> None:
            if self._instances.get(host) is instance:
                self._watch_notices(host)

        def failed(finished: Finished) -> None:
            self.tell(f"{host} cannot watch for interruption notices: {finished.last_line}")

        connection.start([shipping.code().name, python, *words], started, failed, script=shipping.START)

    def _noticed(self, host: str, instance: Instance, line: bytes) -> None:
        try:
            notice: dict[str, Any] = json.loads(line)
            kind = notice["notice"]
        except (ValueError, KeyError, TypeError):
            return
        if self._instances.get(host) is not instance:
            return
        if kind == "silence":
            self.tell(f"{host}: {notice.get('text')}")
            return
        if kind == "interruption":
            self._fleet.notice(host)
        if (there := self._there.get(host)) is not None:
            there.on_notice(float(notice.get("in_s", _REBALANCE_S)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceMachine(Machine):
    """A machine that is an instance; another one may have its address later.

    Attributes:
        instance: Its id.
    """

    instance: str

    @property
    def name(self) -> str:
        """What it is called in messages: its id."""
        return self.instance


def host_alias(fleet: str) -> str:
    """Return what a fleet's hosts are called in its file of host keys: all of them show the same one."""
    return f"fleetfit-{fleet}"


def start_remover(fleet: str, region: str, options: Ec2Options) -> tuple[int, int]:
    """Start what removes a fleet when a descriptor is closed, by its owner's end if need be.

    Returns:
        The process, and the descriptor.
    """
    read, write = os.pipe()
    argv = [sys.executable, "-m", "estimators.backends.ec2.remover", "--fleet", fleet, "--region", region]
    argv += ["--wait", f"{_REMOVER_POLLS * options.poll:g}"]
    if options.profile is not None:
        argv += ["--profile", options.profile]
    # It must find this very package, and nothing of the working folder.
    paths = [str(Path(__file__).resolve().parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        pid = processes.spawn(
            argv, env=environment, stdin=read, stdout=nothing, stderr=nothing, death_signal=0, new_session=True
        )
    finally:
        os.close(read)
        os.close(nothing)
    return pid, write
