"""Provide hosts on instances that EC2 launches for a job. The hosts are reached by ssh.

An instance is terminated when its host is not needed any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from container.system.asyncio_loop import gather
from estimators.backends.base import Leftover
from estimators.backends.ec2 import leftovers, prices, requests
from estimators.backends.ec2.api import ERRORS, Ec2Api, reason_of
from estimators.backends.ec2.fleet import Ec2Fleet, InstanceSlot, NoInstance
from estimators.backends.ec2.options import PREFIX, Ec2Options, instance_types, ssh_part
from estimators.backends.ec2.requests import Instance
from estimators.backends.hosts.agents import agent_command
from estimators.backends.hosts.child import ChildProcess
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
from estimators.backends.hosts.waiting import unless
from estimators.backends.openssh.command import Destination
from estimators.backends.openssh.connection import Connections, NotStarted, SshConnection
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.ssh.machines import SshMachine
from estimators.backends.ssh.provider import Reservation, SshProvider
from estimators.job import fleets, instances
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import JobOptions, TrainingJobSpec

#: Number of unusable instances after which no further instance is launched for a host.
_STARTS = 3
#: A host shuts itself down when its lease has ended. While the host is connected, its lease is extended this many times
#: within the duration of one lease (the option ``lease``).
_EXTENSIONS = 6
#: Seconds between two checks for notices on a host, as AWS recommends.
_NOTICES_S = 5.0
#: Seconds that the job gets to save after a rebalance recommendation, which has no deadline of its own.
_REBALANCE_S = 120.0


class Ec2Provider(SshProvider):
    """A provider of hosts on instances that EC2 launches.

    When an instance is running, an ssh connection starts an agent (our helper process) on the instance, as in
    :class:`estimators.backends.ssh.provider.SshProvider`.
    """

    name: ClassVar[str] = fleets.EC2
    capabilities: ClassVar[Capabilities] = fleets.FLEETS[fleets.EC2].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        given = Ec2Options.of(job.options.backend_options)
        super().__init__(dataclasses.replace(job, options=ssh_part(job.options)))
        self._given = given
        self._fleet = Ec2Fleet(job, given)
        self._connections = Connections(job.loop, self._fleet.settings)
        # The instance of each host, and the task that watches the instance.
        self._launched: dict[str, tuple[InstanceSlot, asyncio.Task[Any]]] = {}

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: JobOptions) -> list[str]:
        """Return the reasons why the job cannot run on EC2, such as missing programs on this machine or options that
        contradict each other.
        """
        try:
            given = Ec2Options.of(options.backend_options)
            types = instance_types(spec, given)
            Aws(region=given.region, profile=given.profile)  # refuses a missing region
        except ConfigurationError as error:
            return [str(error)]
        found = []
        if isinstance(spec.strategy, Elastic) and spec.strategy.discovery is not None:
            found.append("jobs on EC2 get their hosts from EC2. Leave discovery out, or use instance_type='ssh'.")
        for type_ in types:
            slots, ranks = instances.slots(f"{PREFIX}{type_}"), spec.ranks_per_host
            if slots is not None and ranks > slots:
                found.append(
                    f"processes_per_host={ranks} is more than the {slots} slots of {type_}: use a larger type."
                )
        for name in ("on_demand_base", "on_demand_fallback"):
            if options.backend_options.get(name) and not spec.spot:
                found.append(
                    f"backend_options={{'{name}': …}} is only for spot capacity. Set use_spot_instances=True, or leave "
                    "the option out."
                )
        for tool in ("ssh", "ssh-keygen"):
            if shutil.which(tool) is None:
                found.append(f"{tool} is not installed. Install it (apt-get install openssh-client).")
        return found

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions) -> Placement:
        """Return where the job would run and what it would cost. The prices are requested from AWS."""
        given = Ec2Options.of(options.backend_options)
        types = instance_types(spec, given)
        notes: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        try:
            api = Ec2Api(region=given.region, profile=given.profile)
            days = prices.PLAN_DAYS if spec.spot else 0.0
            known = api.prices(types, on_demand=given.on_demand_price, spot_days=days)
            notes = prices.describe(known, spec, given, types, api.region)
        except (*ERRORS, ConfigurationError) as error:
            warnings = (f"the price of the job is unknown: {reason_of(error)}.",)
        return dataclasses.replace(
            super().describe(spec, ssh_part(options)),
            interface="",
            cpus=instances.vcpus(f"{PREFIX}{types[0]}") or 1,
            gpus=instances.gpus(f"{PREFIX}{types[0]}"),
            connect={host: ("ssh", "-l", given.user, host.upper()) for host in spec.hosts},
            warnings=warnings,
            notes=notes,
        )

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding for ``fleetfit doctor``: whether EC2 is set up, and how many instances jobs have."""
        try:
            api = Ec2Api()
            count = sum(one.kind == "instance" for one in api.resources())
        except (*ERRORS, ConfigurationError) as error:
            return [Finding(name="ec2", ok=None, text=f"not set up: {reason_of(error)}")]
        text = f"region {api.region}; {count} instances of fleetfit's jobs are running"
        return [Finding(name="ec2", ok=True, text=text, remedy="`fleetfit clean --ec2` removes unused resources")]

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return the fleets that exist on EC2 for jobs of this user and this machine.

        A fleet is all resources that one start of a supervisor has created. Fleets of running jobs are included.
        """
        return leftovers.find(region)

    # --- hosts ---

    def membership(self) -> MembershipSource | None:
        """Return None, because EC2 launches an instance for each requested host, and no list of machines is needed.

        Agents on the hosts report the interruption notices.
        """
        return None

    async def acquire(self, name: str) -> Host:
        """Launch an instance, start an agent on the instance, and return the host.

        If an instance cannot be used, another one is launched. At most three instances are tried.

        Raises:
            HostUnavailable: EC2 launches no instance, or three launched instances cannot be used. The message has the
                reasons.
        """
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

    async def _start_on(self, name: str, slot: InstanceSlot) -> Host:
        """Wait for an instance, start an agent on the instance, and return the host.

        Raises:
            NoInstance: no instance will be launched.
            HostError: the instance cannot be used, because it does not answer or has ended.
        """
        reservation: Reservation | None = None
        try:
            instance = await slot.boot()
            reservation = self._reservations[name] = Reservation(self._machine(instance), self._pool)
            host = await unless(slot.over, self._start(name, reservation))
        except BaseException:
            self._fleet.drop(slot)
            if reservation is not None:
                self._give_up(name, reservation)
                if reservation.connection is not None:  # the connection to a host that is not needed any more
                    reservation.connection.close()
            raise
        watching = [self._lose(host, slot)]
        if instance.spot:
            watching.append(self._watch_for_notices(host, slot))
        self._launched[name] = slot, self.loop.start(gather(*watching))
        return host

    def _machine(self, instance: Instance) -> SshMachine:
        address = instance.public_address if self._given.reach == "public" else instance.private_address
        if not address:
            raise NoInstance(
                f"{instance.id} has no public address. Name subnets that assign public addresses, or use the private "
                "addresses with backend_options={'reach': 'private'}"
            )
        return SshMachine(
            label=instance.id,  # the address may later belong to another instance
            destination=Destination(host=address, user=self._given.user, options={"HostKeyAlias": self._fleet.alias}),
            address=instance.private_address,
        )

    async def _connect(self, machine: SshMachine) -> SshConnection:
        """Connect to a machine that may still be starting, and return the connection.

        As long as the connection is open, the machine's lease is extended regularly.

        Raises:
            HostError: the machine cannot be reached, or its lease cannot be extended.
        """
        connection = await self._connections.open(machine.destination, patience=self._given.boot_timeout)
        try:
            timer = await connection.start([], script=requests.EXTEND)
        except NotStarted as error:
            connection.close()
            raise HostError(f"its shutdown timer cannot be extended: {error}") from None
        except BaseException:
            connection.close()
            raise
        self.loop.start(self._extend(connection, timer))
        return connection

    async def _extend(self, connection: SshConnection, timer: ChildProcess) -> None:
        try:
            while connection.ended is None:
                timer.send(f"{round(self._given.lease)}\n".encode())
                await asyncio.sleep(self._given.lease / _EXTENSIONS)
        finally:
            timer.close()

    async def _lose(self, host: Host, slot: InstanceSlot) -> None:
        """Wait until EC2 reports the end of the host's instance, then record the host as lost.

        The ssh connection to the host may detect the end of the instance only later.
        """
        await asyncio.wait((slot.over,))
        host.lose(str(slot.over.result()))

    async def _watch_for_notices(self, host: Host, slot: InstanceSlot) -> None:
        """Run an agent on the host, and handle EC2's interruption notices, which the agent reports."""
        argv = agent_command(host, ["notices", "--imds", self._given.imds, "--every", f"{_NOTICES_S:g}"])
        rest = b""

        def hear(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # the output of an interpreter that cannot run the agent
                    self._noticed(host, slot, json.loads(line))

        with contextlib.suppress(HostLost):
            while True:
                await host.run(argv, {}, hear).wait()
                await asyncio.sleep(_NOTICES_S)  # only the agent has ended, for example killed by abort()

    def _noticed(self, host: Host, slot: InstanceSlot, notice: Mapping[str, Any]) -> None:
        if notice["notice"] == "silence":
            self.job.tell(f"{host.name}: {notice['text']}")
            return
        slot.noticed |= notice["notice"] == "interruption"
        host.notice(float(notice.get("in_s", _REBALANCE_S)))

    def release(self, host: Host) -> None:
        """Release a host, and terminate the host's instance.

        EC2 itself terminates an interrupted instance, and may not bill it. Such an instance is not terminated here.
        """
        slot, watching = self._launched.pop(host.name)
        watching.cancel()
        connection = self._reservations[host.name].connection
        super().release(host)
        left = self._fleet.drop(slot)
        if connection is not None and not left:  # an open connection extends the lease
            connection.close()

    def close(self) -> None:
        """Close all connections. A separate process, the remover, then terminates all instances of the job."""
        super().close()
        self._fleet.close()
