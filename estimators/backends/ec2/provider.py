"""The provider: machines that EC2 launches for a job, reached by ssh, and ended when nobody wants them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from container.system import folders, processes
from container.system.asyncio_loop import gather
from container.system.removing import remove_tree
from estimators.backends.base import Leftover
from estimators.backends.ec2 import keys, leftovers, plans, prices, requests
from estimators.backends.ec2.api import Ec2Api, Instance, Made
from estimators.backends.ec2.fleet import Ec2Fleet, NoInstance, Slot
from estimators.backends.ec2.options import PREFIX, Ec2Options, instance_types
from estimators.backends.hosts import shipping
from estimators.backends.hosts.membership import MembershipSource
from estimators.backends.hosts.provider import (
    Finding,
    Host,
    HostError,
    HostLost,
    HostUnavailable,
    Placement,
    ProvidedJob,
)
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.ssh.child import read
from estimators.backends.ssh.command import Destination, SshSettings
from estimators.backends.ssh.connection import Connections, NotStarted, RunningProgram, SshConnection
from estimators.backends.ssh.machines import Machine
from estimators.backends.ssh.provider import Place, SshProvider
from estimators.job import fleets, instances
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

#: How many instances in a row may fail to start for one host.
_STARTS = 3
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
    """Hosts that EC2 launches.

    What is done on a host over its connection is :class:`estimators.backends.ssh.provider.SshProvider`'s.
    """

    name: ClassVar[str] = fleets.EC2
    capabilities: ClassVar[Capabilities] = fleets.FLEETS[fleets.EC2].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        given = Ec2Options.of(job.options.backend_options)
        super().__init__(dataclasses.replace(job, options=plans.ssh_part(job.options, given)))
        self._given = given
        self._types = instance_types(job.spec, given)
        self._fleet_name = secrets.token_hex(8)
        self._alias = f"fleetfit-{self._fleet_name}"  # what the hosts are called in the file of host keys
        self._tags = requests.tags_of(job.spec.name, self._fleet_name, leftovers.owner(), given.tags)
        self._folder: Path | None = None
        self._pipe = -1  # at whose end the fleet is removed
        self._noted = 0.0  # when costs were
        self._slots: dict[str, Slot] = {}  # host -> its instance
        self._lives: dict[str, asyncio.Task[Any]] = {}  # host -> what watches it
        self._fleet = Ec2Fleet(
            job.loop,
            make=self._make,
            fleet=self._fleet_name,
            tags=self._tags,
            options=given,
            types=self._types,
            spot=bool(job.spec.spot),
            together=not isinstance(job.spec.strategy, Elastic),
            waits=bool(job.spec.spot and job.spec.stopping.max_wait_s),
            say=job.tell,
            limit=job.limit,
            note=self._note,
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
                (
                    f"backend_options={{'{name}': …}} is only for spot capacity. Set use_spot_instances=True, or leave "
                    "the option out."
                )
                for name in ("on_demand_base", "on_demand_fallback")
                if getattr(given, name)
            ]
        found += [
            f"{tool} is not installed. Install it (apt-get install openssh-client)."
            for tool in ("ssh", "ssh-keygen")
            if shutil.which(tool) is None
        ]
        return found

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run and what that costs; asks EC2 for its prices."""
        return plans.placement(spec, options)

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether EC2 can be asked."""
        return plans.findings()

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return the fleets of this user's jobs here."""
        return leftovers.find(region)

    # --- hosts ---

    def membership(self) -> MembershipSource | None:
        """Return None: EC2 launches an instance for each host that is asked for. Notices come from the hosts."""
        return None

    async def acquire(self, name: str) -> Host:
        """Have an instance launched, and start an agent there; another one, where that cannot be used."""
        reasons: list[str] = []
        while True:
            slot = self._fleet.want()
            try:
                return await self._start_on(name, slot)
            except NoInstance as error:
                raise HostUnavailable("; ".join([*reasons, str(error)])) from None
            except HostError as error:
                reasons.append(f"{slot.id}: {error}")
                if len(reasons) == _STARTS:
                    raise HostUnavailable("; ".join(reasons)) from None
                self.job.tell(f"{slot.id} could not be used ({error}). Requesting another instance")

    async def _start_on(self, name: str, slot: Slot) -> Host:
        """Wait for an instance, and start an agent there.

        Raises:
            NoInstance: there will be none.
            HostError: it cannot be used: it never answers, say.
        """
        place: Place | None = None
        try:
            instance = await slot.boot()
            place = self._places[name] = Place(self._machine(instance))
            host = await self._start_unless_gone(name, place, slot)
        except BaseException:
            self._fleet.drop(slot)
            if place is not None:
                self._give_up(name, place)
                if place.connection is not None:  # of a host that came when nobody wanted it any more
                    place.connection.close()
            raise
        self._slots[name] = slot
        slot.used = True
        self._lives[name] = self.loop.start(self._watch(host, slot, instance, place))
        return host

    def _machine(self, instance: Instance) -> InstanceMachine:
        address = instance.public_address if self._given.reach == "public" else instance.private_address
        if not address:
            raise NoInstance(
                f"{instance.id} has no public address. Name subnets that assign public addresses, or use the private "
                "addresses with backend_options={'reach': 'private'}"
            )
        return InstanceMachine(
            instance=instance.id,
            destination=Destination(host=address, user=self._given.user, options={"HostKeyAlias": self._alias}),
            address=instance.private_address,
        )

    async def _start_unless_gone(self, name: str, place: Place, slot: Slot) -> Host:
        """Start an agent, unless EC2 says before that the instance is gone."""
        starting = asyncio.ensure_future(self._start(name, place))
        gone = asyncio.ensure_future(slot.until_gone())
        try:
            await asyncio.wait((starting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise HostLost(gone.result())
            return starting.result()
        finally:
            starting.cancel()
            gone.cancel()
            await asyncio.wait((starting, gone))

    async def _connect(self, machine: Machine) -> SshConnection:
        """Connect to a machine that may still start."""
        return await self._connections.open(machine.destination, patience=self._given.boot_timeout)

    async def _hold(self, connection: SshConnection) -> None:
        """Have a host's timer moved on."""
        try:
            timer = await connection.start([], script=requests.EXTEND)
        except NotStarted as error:
            raise HostError(f"its shutdown timer cannot be extended: {error}") from None
        self.loop.start(self._extend(connection, timer))

    async def _extend(self, connection: SshConnection, timer: RunningProgram) -> None:
        """Move a host's timer on for as long as its connection is there."""
        os.set_blocking(timer.write, False)
        try:
            while connection.ended is None:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(timer.write, f"{round(self._given.lease)}\n".encode())
                await asyncio.sleep(self._given.lease / _EXTENSIONS)
        finally:
            timer.close()

    async def _watch(self, host: Host, slot: Slot, instance: Instance, place: Place) -> None:
        """Watch a host until it is released: what EC2 says of its instance, and the notices that it gets itself."""
        watching = [self._lose(host, slot)]
        if instance.lifecycle is requests.Lifecycle.SPOT and place.connection is not None:
            watching.append(self._hear_notices(host, slot, place.connection, place.python))
        await gather(*watching)

    async def _lose(self, host: Host, slot: Slot) -> None:
        """Lose a host when EC2 says that its instance is gone, which its connection may not know yet."""
        host.lose(await slot.until_gone())

    async def _hear_notices(self, host: Host, slot: Slot, connection: SshConnection, python: str) -> None:
        words = [shipping.code().name, python]
        words += ["agent", "notices", "--imds", self._given.imds, "--every", f"{_NOTICES_S:g}"]
        while connection.ended is None:
            try:
                program = await connection.start(words, script=shipping.START)
            except NotStarted as error:
                self.job.tell(f"{host.name} cannot watch for interruption notices: {error}")
                return
            try:
                said = b""
                while data := await read(self.loop, program.read):
                    *lines, said = (said + data).split(b"\n")
                    for line in lines:
                        self._noticed(host, slot, line)
            finally:
                program.close()
            await asyncio.sleep(_NOTICES_S)  # what watches there was killed

    def _noticed(self, host: Host, slot: Slot, line: bytes) -> None:
        try:
            notice: dict[str, Any] = json.loads(line)
            kind = notice["notice"]
        except (ValueError, KeyError, TypeError):
            return
        if kind == "silence":
            self.job.tell(f"{host.name}: {notice.get('text')}")
            return
        slot.noticed = slot.noticed or kind == "interruption"
        host.on_notice(float(notice.get("in_s", _REBALANCE_S)))

    def release(self, host: Host) -> None:
        """Have a host's instance terminated, unless EC2 ends it itself and for nothing."""
        self._lives.pop(host.name).cancel()
        connection = self._places[host.name].connection
        super().release(host)
        left = self._fleet.drop(self._slots.pop(host.name))
        if connection is not None and not left:  # else its timer is moved on until then
            connection.close()

    def close(self) -> None:
        """Let go of the fleet: it is removed by a process that outlives this one."""
        for life in self._lives.values():
            life.cancel()
        self._fleet.close()
        self.job.note({"cost": self._fleet.cost().to_dict()})
        super().close()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)

    # --- the fleet ---

    def _make(self) -> tuple[Ec2Api, Made]:
        """Make what the hosts have in common; in a thread. Whoever removes it is there before."""
        given = self._given
        api = Ec2Api(region=given.region, profile=given.profile)
        if self._folder is None:
            self._folder = folders.make()
            self._keys = keys.make(self._folder)
            known = self._folder / "known_hosts"
            known.write_text(self._keys.known_hosts(self._alias), encoding="ascii")
            config = Path(given.ssh_config or os.devnull).expanduser()
            settings = SshSettings(known_hosts=known, config=config, strict=True, identity=self._keys.login)
            self._connections = Connections(self.loop, settings)
        if self._pipe < 0:
            pid, self._pipe = start_remover(self._fleet_name, api.region, given)
            self.job.protected.add(pid)
        return api, api.make(
            fleet=self._fleet_name,
            tags=self._tags,
            options=given,
            type_=self._types[0],
            public_key=self._keys.login_public,
            user_data=requests.user_data(
                host_key=self._keys.host,
                host_key_public=self._keys.host_public,
                first_lease=given.first_lease,
            ),
        )

    def _note(self, cost: prices.Cost) -> None:
        if time.monotonic() - self._noted >= _NOTED_S:
            self._noted = time.monotonic()
            self.job.note({"cost": cost.to_dict()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceMachine(Machine):
    """A machine that is an instance; another one may have its address later.

    Attributes:
        instance: Its id.
    """

    instance: str

    @property
    def name(self) -> str:
        """Return its name in messages: its id."""
        return self.instance


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
