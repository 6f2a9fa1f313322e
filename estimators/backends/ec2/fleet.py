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
import random
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
from estimators.backends.ec2.api import Ec2Api, reason_of, resource_name
from estimators.backends.ec2.options import Ec2Options, instance_types
from estimators.backends.ec2.prices import FleetCost, Prices, cost, hourly
from estimators.backends.ec2.requests import FleetAnswer, Instance, Refusal
from estimators.backends.hosts.keys import make_key
from estimators.backends.hosts.provider import HostError, HostLost, HostUnavailable, ProvidedJob
from estimators.backends.hosts.remover import Remover
from estimators.backends.hosts.waiting import unless
from estimators.backends.openssh.command import SshSettings
from estimators.backends.sagemaker.explaining import passes
from estimators.job.failure_policy import pause_s

#: Seconds after a launch in which EC2 may not list the instance yet.
_UNSEEN_S = 60.0
#: Delay until capacity is requested again, in seconds: the first one, which doubles each time, and the longest.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
#: Seconds between two requests for prices, and the number of past days that they cover.
_PRICES_S, _PRICE_DAYS = 300.0, 1.0
#: Factor by which polls are less frequent if no instance is starting.
_SLOWLY = 5
#: Delay between two attempts of the remover, as a multiple of the option ``poll``.
_REMOVER_POLLS = 1.5
#: EC2 does not bill a spot instance that it interrupts within these seconds after its launch.
_FREE_S = 3600.0


class NoInstance(HostUnavailable):
    """Raised if EC2 launches no instance, or if a launched instance cannot be used."""


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
    def booting(self) -> bool:
        """Return whether the instance is expected to run, but is not running yet."""
        return not self.running.done() and not self.over.done()

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
        self.alias = resource_name(self._fleet)
        self._folder = folders.make()
        self.settings = SshSettings(
            known_hosts=self._folder / "known_hosts",
            config=Path(options.ssh_config or os.devnull).expanduser(),
            strict=True,
            identity=self._folder / "login",
        )
        self._api: Ec2Api | None = None
        self._host_key: tuple[str, str] | None = None  # the hosts' private and public key
        self._places: tuple[tuple[str, str], ...] = ()  # the permitted zones and subnets, when all is prepared
        self._remover: Remover | None = None
        self._waiting: list[InstanceSlot] = []  # no instance was launched for them yet
        self._slots: dict[str, InstanceSlot] = {}  # the others, by the id of the instance
        self._left: set[str] = set()  # instances without a host, which EC2 is about to terminate
        self._instances: dict[str, Instance] = {}  # all instances that EC2 has ever described, by id
        self._prices: Prices = {}
        self._named: set[str] = set()  # all instances that EC2's answers to requests named
        self._unanswered = False  # whether a request was sent whose answer has not come yet
        self._since, self._waits = 0.0, 0  # start of the wait for instances, and number of waits since
        self._asking: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self._one_more = asyncio.Event()  # a host has requested an instance
        self._news = asyncio.Event()  # an instance was launched, or has no host any more
        self._described = asyncio.Event()  # EC2 has described the instances again

    @functools.cached_property
    def _background(self) -> Background:
        """Return the object that runs blocking calls in threads."""
        return Background.of(self._job.loop)

    # --- requests of hosts ---

    def want(self) -> InstanceSlot:
        """Request an instance for a host. Requests that are made at the same time are sent together."""
        slot = InstanceSlot(self._job.loop.create_future(), self._job.loop.create_future())
        self._waiting.append(slot)
        self._one_more.set()
        if self._asking is None:
            self._asking = self._job.loop.start(self._ask())
        return slot

    def drop(self, slot: InstanceSlot) -> bool:
        """Release the instance of a host. The instance is then terminated, unless EC2 will soon terminate it for free.

        EC2 itself terminates an instance after an interruption notice. EC2 does not bill the instance if this happens
        in the instance's first hour. Such an instance is therefore not terminated here.

        Returns:
            Whether EC2 will terminate the instance itself.
        """
        if slot in self._waiting:
            self._waiting.remove(slot)
        self._slots.pop(slot.id, None)
        self._news.set()
        known = self._instances.get(slot.id)
        leave = slot.noticed and known is not None and known.ended is None and time.time() - known.launched < _FREE_S
        if leave:
            self._left.add(slot.id)
        return leave

    def close(self) -> None:
        """Stop requesting and watching instances. The remover, a separate process, then removes the fleet."""
        for task in (self._asking, *self._following):
            if task is not None:
                task.cancel()
        self._job.note({"cost": dataclasses.asdict(self._cost())})
        if self._remover is not None:
            self._remover.finish()
        remove_tree(self._folder, ignore_errors=True)

    # --- launching instances ---

    async def _ask(self) -> None:
        """Request instances until each waiting host has an instance or no instance can be launched."""
        try:
            api = await self._prepare()
            if not self._following:  # from now on: even a failed request may launch instances
                self._following = [self._job.loop.start(one) for one in (self._watch(api), self._follow_cost(api))]
            self._since, self._waits = _now(), 0
            while self._waiting:
                if self._has_undescribed():
                    self._described.clear()
                    await _first(self._options.poll, self._described)
                else:
                    await self._request(api)
        except Exception as error:  # noqa: BLE001 - whatever the error, hosts must not wait for ever
            reason = error if isinstance(error, NoInstance) else NoInstance(reason_of(error))
            for slot in self._waiting:
                slot.end(reason)
            self._waiting.clear()
        finally:
            self._asking = None

    async def _prepare(self) -> Ec2Api:
        """Start the remover, the process that will remove the fleet. Then create the resources that the hosts share.

        The first call does this. Later calls only return the client of EC2.
        """
        if self._api is None or not self._places:
            self._job.tell("Creating a key pair, a security group and a launch template for the hosts")
            region, profile = self._options.region, self._options.profile
            self._api = api = await self._background.call(lambda: Ec2Api(region=region, profile=profile))
            if self._remover is None:
                wait = _REMOVER_POLLS * self._options.poll
                duty = {"fleet": self._fleet, "region": api.region, "profile": profile, "wait": wait}
                self._remover = Remover(self._job.loop, self._job.protected, leftovers.__name__, self._fleet, duty)
            self._places = await self._background.call(lambda: self._make(api))
        return self._api

    def _make(self, api: Ec2Api) -> tuple[tuple[str, str], ...]:
        if self._host_key is None:
            login, host = self._folder / "login", self._folder / "host"
            for file in (login, host):
                file.unlink(missing_ok=True)  # an earlier attempt may have failed halfway
            make_key(login)
            host_key = make_key(host)
            host.unlink()  # needed only on the hosts
            self.settings.known_hosts.write_text(f"{self.alias} {host_key[1]}", encoding="ascii")
            self._host_key = host_key
        user_data = requests.user_data(*self._host_key, first_lease=self._options.first_lease)
        public = (self._folder / "login.pub").read_text(encoding="ascii")
        return api.make(self._fleet, self._tags, self._options, self._types[0], public, user_data)

    async def _request(self, api: Ec2Api) -> None:
        """Send requests to EC2 until one of them launches instances. If none does, wait before the caller tries again.

        Each request permits more combinations of instance types and purchasing options than the request before.

        Raises:
            NoInstance: no instance can be launched, or the job has waited for too long.
        """
        hosts = len(self._waiting)
        for request in self._requests(hosts):
            answer = await self._launch(api, request)
            if answer.launched or len(self._waiting) != hosts:  # the next pass is for another number of hosts
                return
        await self._wait(
            f"EC2 has no capacity ({answer})",
            f"EC2 had no capacity within {self._options.capacity_timeout:g} s ({answer}). Allow more types or zones "
            "(backend_options={'types': […]}), or wait longer with max_wait",
        )

    def _has_undescribed(self) -> bool:
        """Return whether EC2 has not yet described an instance that it has just launched. The next request depends on
        the zones, purchasing options and prices of all instances.
        """
        slots = self._slots.items()
        return any(id_ not in self._instances and _now() - slot.launched < _UNSEEN_S for id_, slot in slots)

    def _requests(self, hosts: int) -> list[dict[str, Any]]:
        options, places = self._options, self._places
        mine = [one for id_ in self._slots if (one := self._instances.get(id_)) is not None and not one.gone]
        zones = {one.zone for one in mine}
        if self._together and zones:  # all hosts of the job must be in the same zones
            places = tuple(place for place in places if place[0] in zones) or places
        most = options.max_price_per_hour if self._spot else None
        return requests.fleet_requests(
            options,
            template=resource_name(self._fleet),
            tags=self._tags,
            hosts=hosts,
            types=self._types,
            subnets=[subnet for _, subnet in places],
            on_demand=max(0, options.on_demand_base - sum(not one.spot for one in mine)) if self._spot else hosts,
            together=self._together,
            max_total_price=max(0.0001, most - hourly(self._prices, self._instances.values())) if most else None,
        )

    async def _launch(self, api: Ec2Api, request: dict[str, Any]) -> FleetAnswer:
        """Send a request to EC2, and assign the launched instances to the waiting hosts.

        Raises:
            NoInstance: no instance can be launched, or the request has failed for too long.
        """
        self._unanswered = True
        try:
            answer = await self._send(api, request)
            self._named.update(answer.launched)
            for id_, slot in zip(answer.launched, self._waiting.copy(), strict=False):  # the rest gets no host
                slot.id, slot.launched = id_, _now()
                self._slots[id_] = slot
                self._waiting.remove(slot)
        finally:
            self._unanswered = False
        if (reason := answer.hopeless) is not None:
            raise NoInstance(reason.explain())
        if count := len(answer.launched):
            self._job.tell(f"{count} instance{'s' if count > 1 else ''} launched; waiting for startup")
            self._news.set()
            self._since, self._waits = _now(), 0
        return answer

    async def _send(self, api: Ec2Api, request: dict[str, Any]) -> FleetAnswer:
        """Send a request to EC2, and return the answer.

        A failed request is repeated with the same token, so that EC2 launches no additional instances.

        Raises:
            NoInstance: the request has failed for too long.
        """
        token = secrets.token_hex(16)
        while self._waiting:
            try:
                return await self._background.call(lambda: api.launch(request, token))
            except Exception as error:
                if not passes(error):
                    raise
                refusal = Refusal.of(error)
            limit = f"{self._options.capacity_timeout:g} s"
            await self._wait(
                f"a request to EC2 failed ({refusal})", f"requests to EC2 failed for {limit}. {refusal.explain()}"
            )
        return FleetAnswer()

    async def _wait(self, why: str, too_long: str) -> None:
        """Wait before the next request, longer each time. The wait ends early if another host requests an instance.

        The sum of the waits is limited by ``capacity_timeout``, except in an elastic job while other hosts are running,
        and in a spot job with ``max_wait``, which limits the job itself.

        Args:
            why: The reason for the wait, for the user.
            too_long: The message of the exception.

        Raises:
            NoInstance: the job has waited for too long.
        """
        others = not self._together and any(slot.runs for slot in self._slots.values())
        unlimited = others or (self._spot and self._job.spec.stopping.max_wait_s)
        if _now() - self._since > self._options.capacity_timeout and not unlimited:
            raise NoInstance(too_long)
        self._waits += 1
        seconds = pause_s(_FIRST_WAIT_S, _LONGEST_WAIT_S, self._waits) * min(1.0, self._options.poll / 2.0)
        seconds *= random.uniform(0.75, 1.25)  # waiting jobs do not send their requests at the same time
        self._job.tell(f"{why}; trying again in {seconds:.0f} s")
        self._one_more.clear()
        await _first(seconds, self._one_more)

    # --- watching instances ---

    async def _watch(self, api: Ec2Api) -> None:
        """Poll the instances, and terminate instances without a host, until the task is cancelled."""
        while True:
            self._news.clear()
            with contextlib.suppress(Exception):  # it is tried again at the next poll
                await self._look(api)
            awaited = any(slot.booting for slot in self._slots.values())
            await _first(self._options.poll * (1 if awaited else _SLOWLY), self._news)

    async def _look(self, api: Ec2Api) -> None:
        """Update the state of the instances from EC2's descriptions, and terminate instances without a host."""
        found = {one.id: one for one in await self._background.call(lambda: api.describe(self._fleet))}
        for one in found.values():
            known = self._instances.get(one.id, one)
            one.ended = known.ended or (time.time() if one.gone else None)
        self._instances.update(found)
        self._described.set()
        for id_, slot in self._slots.items():
            slot.see(found.get(id_))
        spared = self._left | self._slots.keys()
        if self._unanswered:  # the answer to the request may name them
            spared |= found.keys() - self._named
        nobodys = [one.id for one in found.values() if not one.gone and one.id not in spared]
        await self._background.call(lambda: api.terminate(nobodys))

    # --- money ---

    async def _follow_cost(self, api: Ec2Api) -> None:
        """Store the cost in the job's status at each poll. When the cost first reaches a limit, stop the job."""
        price, days = self._options.on_demand_price, _PRICE_DAYS if self._spot else 0.0
        priced, stopped = -math.inf, False
        while True:
            if _now() - priced >= _PRICES_S:
                with contextlib.suppress(Exception):  # without permission to read prices, the job continues
                    new = await self._background.call(lambda: api.prices(self._types, on_demand=price, spot_days=days))
                    self._prices = {**self._prices, **new}
                    priced = _now()
            self._job.note({"cost": dataclasses.asdict(self._cost())})
            if not stopped and (text := self._limit_met(asked=math.isfinite(priced))):
                stopped = True
                self._job.limit(f"The job was stopped: {text}")
            await asyncio.sleep(self._options.poll * _SLOWLY)

    def _cost(self) -> FleetCost:
        return cost(self._prices, list(self._instances.values()), time.time())

    def _limit_met(self, *, asked: bool) -> str:
        """Return why the job must be stopped, or "" if it need not be stopped.

        Args:
            asked: Whether the prices were read at least once. If False, unknown prices are no reason to stop the job.
        """
        spent, per_hour = self._cost(), hourly(self._prices, self._instances.values())
        budget, most = self._options.budget, self._options.max_price_per_hour
        if budget is not None and spent.total >= budget:
            return f"its cost of ${spent.total:.2f} has reached the budget of ${budget:.2f}."
        if most is not None and per_hour > most:
            return f"its hosts cost ${per_hour:.2f} an hour, and max_price_per_hour is ${most:.2f}."
        if (budget or most) and not spent.complete and asked:
            return (
                "it has a cost limit, and the price of its hosts is unknown. Set "
                "backend_options={'on_demand_price': …}, or allow the caller to read prices (docs/ec2.md)."
            )
        return ""


async def _first(seconds: float, event: asyncio.Event) -> None:
    """Wait until an event is set, but for at most ``seconds``."""
    with contextlib.suppress(asyncio.TimeoutError):
        await within(seconds, event.wait())


def _now() -> float:
    return asyncio.get_running_loop().time()
