"""Launch, watch and terminate a job's instances. The code runs in the supervisor's event loop and calls EC2's API in
threads.

A fleet is the set of a job's instances. EC2's list of instances, and not this module's own record, decides which
instances exist. If an instance has ended, its host is notified. An instance without a host is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import os
import secrets
import time
from pathlib import Path
from typing import Any

from container.contract.strategies import Elastic
from container.system import folders
from container.system.asyncio_loop import within
from container.system.background import Background
from container.system.removing import remove_tree
from estimators.backends.ec2 import leftovers, requests
from estimators.backends.ec2.api import Ec2Api, Made, failure_of
from estimators.backends.ec2.options import Ec2Options, instance_types
from estimators.backends.ec2.prices import Prices
from estimators.backends.ec2.requests import FleetAnswer, Instance, Lifecycle, Search
from estimators.backends.hosts.keys import make_key
from estimators.backends.hosts.provider import HostError, HostLost, HostUnavailable, ProvidedJob
from estimators.backends.hosts.remover import Remover
from estimators.backends.hosts.waiting import unless
from estimators.backends.openssh.command import SshSettings
from estimators.job.errors import BackendError, ConfigurationError

#: Seconds after a launch in which EC2 may not list the instance yet.
_UNSEEN_S = 60.0
#: Seconds between two requests for prices, and the number of past days that they cover.
_PRICES_S, _PRICE_DAYS = 300.0, 1.0
#: Seconds between two updates of the cost in the job's status.
_NOTED_S = 60.0
#: Factor by which polls are less frequent if no instance is starting.
_SLOWLY = 5
#: Delay between two attempts of the remover, as a multiple of the option ``poll``.
_REMOVER_POLLS = 1.5
#: EC2 does not bill a spot instance that it interrupts within these seconds after its launch.
_FREE_S = 3600.0


class NoInstance(HostUnavailable):
    """Raised if EC2 launches no instance, or if a launched instance cannot be used."""

    @classmethod
    def of(cls, error: Exception) -> NoInstance:
        """Convert an exception to a :class:`NoInstance`, which each host that waits for an instance will raise."""
        if isinstance(error, NoInstance):
            return error
        ours = isinstance(error, ConfigurationError | BackendError)
        return cls(str(error).rstrip(".") if ours else failure_of(error).explain())


class InstanceSlot:
    """One host's instance, from its request to its end.

    Attributes:
        id: The id of the instance, or "" until EC2 has launched it.
        launched: The time of the instance's launch, in seconds on the event loop's clock.
        running: A future whose result is the instance. The result is set when the instance is running.
        over: A future whose result is the reason why no instance is launched or why the instance has ended.
        noticed: Whether EC2 has announced that it will interrupt the instance.
    """

    def __init__(self, running: asyncio.Future[Instance], over: asyncio.Future[HostError]) -> None:
        self.id = ""
        self.launched = 0.0
        self.running = running
        self.over = over
        self.noticed = False

    @property
    def wanting(self) -> bool:
        """Return whether an instance still has to be launched."""
        return not self.id and not self.over.done()

    @property
    def booting(self) -> bool:
        """Return whether the instance was launched and is not running yet."""
        return bool(self.id) and not self.running.done() and not self.over.done()

    @property
    def runs(self) -> bool:
        """Return whether the instance is running."""
        return self.running.done() and not self.over.done()

    async def boot(self) -> Instance:
        """Wait until the instance is running, and return the instance.

        Raises:
            NoInstance: no instance will be launched. The message has the reason.
            HostLost: the instance has ended before it was running. The message has the reason.
        """
        return await unless(self.over, self.running)

    def end(self, reason: HostError) -> None:
        """Record that no instance will be launched or that the instance has ended. Only the first reason is kept."""
        if not self.over.done():
            self.over.set_result(reason)

    def see(self, one: Instance | None) -> None:
        """Update the slot from EC2's description of the instance.

        Args:
            one: The description, or None if EC2 does not list the instance.
        """
        if one is None:  # a listed instance stays listed for an hour after its end
            if self.booting and _now() - self.launched >= _UNSEEN_S:
                self.end(HostLost("EC2 no longer lists the instance"))
        elif one.gone:
            why = "EC2 has taken the instance back" if one.interrupted else f"it has ended ({one.reason or one.state})"
            self.end(HostLost(why))
        elif self.booting and one.state == "running" and one.private_address:
            self.running.set_result(one)


class Ec2Fleet:
    """The instances of one job.

    Args:
        job: The job, with the functions through which the provider reports to the supervisor.
        options: The EC2 options of the job.

    Attributes:
        alias: The common name of all hosts in the file of host keys.
        settings: The settings with which ssh connects to the hosts.
    """

    def __init__(self, job: ProvidedJob, options: Ec2Options) -> None:
        self._job, self._options = job, options
        self._types = instance_types(job.spec, options)
        self._spot = bool(job.spec.spot)
        self._together = not isinstance(job.spec.strategy, Elastic)
        self._fleet = secrets.token_hex(8)
        self._tags = requests.tags_of(job.spec.name, self._fleet, leftovers.owner(), options.tags)
        self.alias = f"fleetfit-{self._fleet}"
        self._folder = folders.make()
        self.settings = SshSettings(
            known_hosts=self._folder / "known_hosts",
            config=Path(options.ssh_config or os.devnull).expanduser(),
            strict=True,
            identity=self._folder / "login",
        )
        self._api: Ec2Api | None = None
        self._made: Made | None = None
        self._remover: Remover | None = None
        self._slots: list[InstanceSlot] = []
        self._left: set[str] = set()  # instances without a host, which EC2 is about to terminate
        self._instances: dict[str, Instance] = {}  # all instances that EC2 has ever described, by id
        self._prices = Prices()
        self._priced = self._noted = -math.inf
        self._limited = False
        self._requests = 0
        self._named: set[str] = set()  # all instances that EC2's answers to requests named
        self._unanswered = False  # whether a failed request may have launched instances
        self._since, self._passes = 0.0, 0  # start of the wait for capacity, and passes since
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._one_more = asyncio.Event()  # a host has requested an instance
        self._news = asyncio.Event()  # an instance was launched, or has no host any more
        self._exclusive = asyncio.Lock()  # held during a request, because its instances have no host yet

    @functools.cached_property
    def _background(self) -> Background:
        """Return the threads for blocking calls."""
        return Background.of(self._job.loop)

    # --- requests of hosts ---

    def want(self) -> InstanceSlot:
        """Request an instance for a host. Requests that are made at the same time are sent together."""
        slot = InstanceSlot(self._job.loop.create_future(), self._job.loop.create_future())
        self._slots.append(slot)
        self._one_more.set()
        if self._asking is None:
            self._asking = self._job.loop.start(self._ask())
        return slot

    def drop(self, slot: InstanceSlot) -> bool:
        """Release the instance of a host, so that the instance is terminated.

        EC2 itself terminates an instance after an interruption notice. EC2 does not bill the instance if this happens
        in the instance's first hour. Such an instance is therefore not terminated here.

        Returns:
            Whether EC2 will terminate the instance itself.
        """
        self._slots.remove(slot)
        self._news.set()
        known = self._instances.get(slot.id)
        leave = slot.noticed and known is not None and known.ended is None and time.time() - known.launched < _FREE_S
        if leave:
            self._left.add(slot.id)
        return leave

    def close(self) -> None:
        """Stop requesting and watching instances. The remover, a separate process, then removes the fleet."""
        for task in (self._asking, self._watching):
            if task is not None:
                task.cancel()
        self._job.note({"cost": self._prices.cost(self._instances.values(), time.time()).to_dict()})
        if self._remover is not None:
            self._remover.finish()
        remove_tree(self._folder, ignore_errors=True)

    # --- shared resources ---

    async def prepare(self) -> tuple[Ec2Api, Made]:
        """Create the shared resources of the fleet.

        The first call starts the remover, the process that will remove the resources, and then creates the resources.
        Later calls only return the results.

        Returns:
            The client of EC2 and the shared resources.
        """
        if self._made is None or self._api is None:
            self._job.tell("Creating a key pair, a security group and a launch template for the hosts")
            self._api = api = await self._background.call(self.connect)
            if self._remover is None:
                wait = _REMOVER_POLLS * self._options.poll
                duty = {"fleet": self._fleet, "region": api.region, "profile": self._options.profile, "wait": wait}
                self._remover = Remover(self._job.loop, self._job.protected, leftovers.__name__, self._fleet, duty)
            self._made = await self._background.call(lambda: self._make(api))
        return self._api, self._made

    def connect(self) -> Ec2Api:
        """Return a client of EC2 for the job's region. This method is called in a thread."""
        return Ec2Api(region=self._options.region, profile=self._options.profile)

    def _make(self, api: Ec2Api) -> Made:
        login, host = (self._folder / name for name in ("login", "host"))
        if not login.exists():
            make_key(login)
            known, _ = make_key(host)[1].rsplit(maxsplit=1)
            self.settings.known_hosts.write_text(f"{self.alias} {known}\n", encoding="ascii")
        made = api.make(
            fleet=self._fleet,
            tags=self._tags,
            options=self._options,
            type_=self._types[0],
            public_key=login.with_suffix(".pub").read_text(encoding="ascii"),
            user_data=requests.user_data(
                host_key=host.read_text(encoding="ascii"),
                host_key_public=host.with_suffix(".pub").read_text(encoding="ascii").strip(),
                first_lease=self._options.first_lease,
            ),
        )
        host.unlink()  # needed only on the hosts
        return made

    # --- requesting instances ---

    async def _ask(self) -> None:
        """Request instances until each waiting host has an instance or no instance can be launched."""
        try:
            api, made = await self.prepare()
            if self._watching is None:  # watch from now on: even a failed request may launch instances
                self._watching = self._job.loop.start(self._watch(api))
            self._since, self._passes = _now(), 0
            while self._wanting():
                answer = await self._request(api, made)
                if self._wanting():
                    await self._wait(answer)
        except Exception as error:  # noqa: BLE001 - whatever the error, hosts must not wait for ever
            reason = NoInstance.of(error)
            for slot in self._wanting():
                slot.end(reason)
        finally:
            self._asking = None

    def _wanting(self) -> list[InstanceSlot]:
        return [slot for slot in self._slots if slot.wanting]

    def _search(self, made: Made) -> Search:
        places = made.places
        mine = [one for slot in self._slots if (one := self._instances.get(slot.id)) is not None and not one.gone]
        zones = {one.zone for one in mine}
        if self._together and zones:  # all hosts of the job must be in the same zones
            places = tuple(place for place in places if place[0] in zones) or places
        on_demand = sum(one.lifecycle is Lifecycle.ON_DEMAND for one in mine)
        most = self._options.max_price_per_hour
        left = most - self._prices.hourly(self._instances.values()) if most is not None and self._spot else None
        return Search(
            hosts=len(self._wanting()),
            types=self._types,
            places=places,
            spot=self._spot,
            on_demand_base=max(0, self._options.on_demand_base - on_demand),
            fallback=self._options.on_demand_fallback,
            together=self._together,
            max_total_price=max(0.0001, left) if left is not None else None,
        )

    async def _request(self, api: Ec2Api, made: Made) -> FleetAnswer:
        """Send the requests of one pass (:meth:`Search.requests`) to EC2, one after the other.

        Stop when EC2 launches instances or no host waits for an instance.

        Each request permits more combinations of instance types and purchasing options than the request before.

        Raises:
            NoInstance: no instance can be launched, and waiting does not help.
        """
        answer, hosts, step = FleetAnswer(), 0, 0
        while self._wanting() and not answer.launched:
            search = self._search(made)  # computed again, because hosts may have been withdrawn
            if search.hosts != hosts:
                hosts, step = search.hosts, 0
            asked = search.requests(made.template, self._tags)
            if step >= len(asked):
                break
            answer = await self._launch(api, asked[step])
            if (reason := answer.hopeless) is not None:
                raise NoInstance(reason.explain())
            step += 1
        return answer

    async def _launch(self, api: Ec2Api, request: dict[str, Any]) -> FleetAnswer:
        """Send a request to EC2, and assign the launched instances to the waiting hosts.

        A failed request is repeated with the same token, so that EC2 launches no additional instances.

        Raises:
            NoInstance: the request has failed for too long.
        """
        self._requests += 1
        token = f"{self._fleet}-{self._requests}"
        try:
            while self._wanting():
                async with self._exclusive:
                    answer = await self._background.call(lambda: api.launch(request, token))
                    self._unanswered = answer.failed
                    self._named.update(answer.launched)
                    for slot, instance in zip(self._wanting(), answer.launched, strict=False):  # the rest gets no host
                        slot.id, slot.launched = instance, _now()
                if not answer.failed:
                    if count := len(answer.launched):
                        self._job.tell(f"{count} instance{'s' if count > 1 else ''} launched; waiting for startup")
                        self._news.set()
                    return answer
                if self._wanting():
                    await self._wait(answer)
            return FleetAnswer()
        finally:
            self._unanswered = False

    async def _wait(self, answer: FleetAnswer) -> None:
        """Wait before the next request.

        The wait gets longer from pass to pass. It ends early if a host requests an instance meanwhile.

        Args:
            answer: EC2's answer to the last request.

        Raises:
            NoInstance: the job has waited for too long.
        """
        if answer.launched:
            self._since, self._passes = _now(), 0
        else:
            self._check_wait(_now() - self._since, answer)
            self._passes += 1
        seconds = requests.wait_before(max(1, self._passes)) * min(1.0, self._options.poll / 2.0)
        if self._passes:
            why = "a request to EC2 failed" if answer.failed else "EC2 has no capacity"
            self._job.tell(f"{why} ({answer}); trying again in {seconds:.0f} s")
        self._one_more.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._one_more.wait())

    def _check_wait(self, seconds: float, answer: FleetAnswer) -> None:
        """Check whether the job has waited too long for capacity.

        There is no limit in an elastic job while other hosts are training. There is also no limit in a spot job with
        ``max_wait``, because ``max_wait`` limits the job itself.

        Args:
            seconds: The number of seconds for which the job has waited.
            answer: EC2's answer to the last request.

        Raises:
            NoInstance: the job has waited for too long.
        """
        limit = self._options.capacity_timeout
        others = not self._together and any(slot.runs for slot in self._slots)
        if seconds <= limit or others or (self._spot and self._job.spec.stopping.max_wait_s):
            return
        if answer.failed:
            raise NoInstance(f"requests to EC2 failed for {limit:g} s. {answer.shortages[0].explain()}")
        raise NoInstance(
            f"EC2 had no capacity within {limit:g} s ({answer}). Allow more types or zones "
            "(backend_options={'types': […]}), or wait longer with max_wait"
        )

    # --- watching ---

    async def _watch(self, api: Ec2Api) -> None:
        """Poll the instances, terminate instances without a host, and update the cost, until the task is cancelled."""
        while True:
            self._news.clear()
            # A failure is retried at the next poll, and does not prevent the other step.
            with contextlib.suppress(Exception):
                await self._look(api)
            with contextlib.suppress(Exception):
                await self._check_cost(api)
            awaited = any(slot.booting for slot in self._slots)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._options.poll * (1 if awaited else _SLOWLY), self._news.wait())

    async def _look(self, api: Ec2Api) -> None:
        """Update the state of the instances from EC2's descriptions, and terminate instances without a host."""
        async with self._exclusive:
            found = {one.id: one for one in await self._background.call(lambda: api.describe(self._fleet))}
            for one in found.values():
                before = self._instances.get(one.id)
                ended = before.ended if before is not None else None
                if one.gone and ended is None:
                    ended = time.time()
                self._instances[one.id] = dataclasses.replace(one, ended=ended)
            for slot in self._slots:
                if slot.id:
                    slot.see(found.get(slot.id))
            owned = self._left | {slot.id for slot in self._slots}
            if self._unanswered:  # a failed request may have launched them; its next answer will name them
                owned |= found.keys() - self._named
            nobodys = [one.id for one in found.values() if not one.gone and one.id not in owned]
            await self._background.call(lambda: api.terminate(nobodys))

    # --- money ---

    async def _check_cost(self, api: Ec2Api) -> None:
        """Store the cost of the instances in the job's status. If the cost exceeds a limit, stop the job."""
        if _now() - self._priced >= _PRICES_S:
            price, days = self._options.on_demand_price, _PRICE_DAYS if self._spot else 0.0
            with contextlib.suppress(Exception):  # without permission to read prices, the job continues
                new = await self._background.call(lambda: api.prices(self._types, on_demand=price, spot_days=days))
                self._prices = self._prices.updated(new)
                self._priced = _now()
        cost = self._prices.cost(self._instances.values(), time.time())
        if _now() - self._noted >= _NOTED_S:
            self._noted = _now()
            self._job.note({"cost": cost.to_dict()})
        budget, most = self._options.budget, self._options.max_price_per_hour
        hourly = self._prices.hourly(self._instances.values())
        if budget is not None and cost.total >= budget:
            text = f"its cost of ${cost.total:.2f} has reached the budget of ${budget:.2f}."
        elif most is not None and hourly > most:
            text = f"its hosts cost ${hourly:.2f} an hour, and max_price_per_hour is ${most:.2f}."
        elif (budget or most) and not cost.complete and self._priced > 0:
            text = (
                "it has a cost limit, and the price of its hosts is unknown. Set "
                "backend_options={'on_demand_price': …}, or allow the caller to read prices (docs/ec2.md)."
            )
        else:
            return
        if not self._limited:
            self._limited = True
            self._job.limit(f"The job was stopped: {text}")


def _now() -> float:
    return asyncio.get_running_loop().time()
