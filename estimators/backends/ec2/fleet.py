"""A job's instances: asked for, watched, ended. In the supervisor's loop; the API is asked in threads.

EC2's own answer says which instances there are. One that is gone is told to whoever has it; one that nobody has is
ended.
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

#: For how long EC2 may not know an instance that it has launched itself, in seconds.
_UNSEEN_S = 60.0
#: How often prices are asked for, and for how many days back, in seconds and days.
_PRICES_S, _PRICE_DAYS = 300.0, 1.0
#: How often the cost is noted, in seconds.
_NOTED_S = 60.0
#: How often the watch looks where nothing is awaited, in its usual intervals.
_SLOWLY = 5
#: How long the remover waits before it looks again, in the intervals in which the job looks for its hosts.
_REMOVER_POLLS = 1.5
#: An instance that EC2 interrupts so soon after its launch is not billed, in seconds.
_FREE_S = 3600.0


class NoInstance(HostUnavailable):
    """Tell that EC2 gives no instance, or none that will do."""

    @classmethod
    def of(cls, error: Exception) -> NoInstance:
        """Return what an exception means for the hosts that want instances."""
        if isinstance(error, NoInstance):
            return error
        ours = isinstance(error, ConfigurationError | BackendError)
        return cls(str(error).rstrip(".") if ours else failure_of(error).explain())


class InstanceSlot:
    """Follow one host's instance, from the wish for it to its end.

    Attributes:
        id: The instance; "" until EC2 has launched it.
        launched: When, on the loop's clock.
        running: The instance, when it runs, in the future.
        over: Why there is none, or none any more, in the future.
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
        """Return whether an instance is to be launched for it."""
        return not self.id and not self.over.done()

    @property
    def booting(self) -> bool:
        """Return whether its instance does not run yet."""
        return bool(self.id) and not self.running.done() and not self.over.done()

    @property
    def runs(self) -> bool:
        """Return whether its instance runs."""
        return self.running.done() and not self.over.done()

    async def boot(self) -> Instance:
        """Wait until the instance runs.

        Raises:
            NoInstance: there will be none; with the reason.
            HostLost: it has ended before; with the reason.
        """
        return await unless(self.over, self.running)

    def end(self, reason: HostError) -> None:
        """Note that there is no instance; the first reason counts."""
        if not self.over.done():
            self.over.set_result(reason)

    def see(self, one: Instance | None) -> None:
        """Take what EC2 says of the instance; None: EC2 does not list it."""
        if one is None:  # one that was seen is listed for an hour after its end
            if self.booting and _now() - self.launched >= _UNSEEN_S:
                self.end(HostLost("EC2 no longer lists the instance"))
        elif one.gone:
            why = "EC2 has taken the instance back" if one.interrupted else f"it has ended ({one.reason or one.state})"
            self.end(HostLost(why))
        elif self.booting and one.state == "running" and one.private_address:
            self.running.set_result(one)


class Ec2Fleet:
    """Launch, watch and end the instances of one job.

    Args:
        job: The job.
        options: What it asks for.

    Attributes:
        alias: The name of all hosts in the file of host keys.
        settings: How ssh reaches them.
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
        self._left: set[str] = set()  # instances that nobody has, and that EC2 is about to end
        self._instances: dict[str, Instance] = {}  # all that EC2 has ever described
        self._prices = Prices()
        self._priced = self._noted = -math.inf
        self._limited = False
        self._requests = 0
        self._named: set[str] = set()  # all instances that EC2's answers have named
        self._unanswered = False  # whether a request has failed that may have launched instances all the same
        self._since, self._passes = 0.0, 0  # since when capacity is waited for, and how often it was
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._one_more = asyncio.Event()  # a host wants an instance
        self._news = asyncio.Event()  # an instance was launched, or nobody has it any more
        self._exclusive = asyncio.Lock()  # during a request, what it has launched would be taken for nobody's

    @functools.cached_property
    def _background(self) -> Background:
        """Return the threads for what blocks."""
        return Background.of(self._job.loop)

    # --- what hosts want ---

    def want(self) -> InstanceSlot:
        """Have an instance launched for a host. What is wanted at once is asked for together."""
        slot = InstanceSlot(self._job.loop.create_future(), self._job.loop.create_future())
        self._slots.append(slot)
        self._one_more.set()
        if self._asking is None:
            self._asking = self._job.loop.start(self._ask())
        return slot

    def drop(self, slot: InstanceSlot) -> bool:
        """Have a host's instance ended, which it does not need any more.

        Returns:
            Whether it is left for EC2 to end: that was announced in its first hour, which is not billed then.
        """
        self._slots.remove(slot)
        self._news.set()
        known = self._instances.get(slot.id)
        leave = slot.noticed and known is not None and known.ended is None and time.time() - known.launched < _FREE_S
        if leave:
            self._left.add(slot.id)
        return leave

    def close(self) -> None:
        """Stop asking and watching; the fleet is removed by a process that outlives this one."""
        for task in (self._asking, self._watching):
            if task is not None:
                task.cancel()
        self._job.note({"cost": self._prices.cost(self._instances.values(), time.time()).to_dict()})
        if self._remover is not None:
            self._remover.finish()
        remove_tree(self._folder, ignore_errors=True)

    # --- what all hosts have in common ---

    async def prepare(self) -> tuple[Ec2Api, Made]:
        """Make what all hosts have in common, once. The process that removes it is there before."""
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
        """Return EC2 in the job's region; in a thread."""
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
        host.unlink()  # it is needed nowhere but on the hosts
        return made

    # --- asking ---

    async def _ask(self) -> None:
        """Ask for instances until each host that wants one has one, or none can be had."""
        try:
            api, made = await self.prepare()
            if self._watching is None:  # also a request that has failed may launch instances, which then nobody has
                self._watching = self._job.loop.start(self._watch(api))
            self._since, self._passes = _now(), 0
            while self._wanting():
                answer = await self._request(api, made)
                if self._wanting():
                    await self._wait(answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, hosts must not wait without end
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
        if self._together and zones:  # to the others of its gang
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
        """Ask EC2 in one way after the other, as long as hosts want instances.

        Raises:
            NoInstance: there are none, and waiting does not help.
        """
        answer, hosts, step = FleetAnswer(), 0, 0
        while self._wanting() and not answer.launched:
            search = self._search(made)  # anew: hosts may have been withdrawn, and are not asked for then
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
        """Ask EC2, and give the instances to the hosts that want some.

        A request that has failed is sent again with the same token, so that nothing is launched twice.

        Raises:
            NoInstance: it has failed for too long.
        """
        self._requests += 1
        token = f"{self._fleet}-{self._requests}"
        try:
            while self._wanting():
                async with self._exclusive:
                    answer = await self._background.call(lambda: api.launch(request, token))
                    self._unanswered = answer.failed
                    self._named.update(answer.launched)
                    for slot, instance in zip(self._wanting(), answer.launched, strict=False):  # others are nobody's
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
        """Wait before EC2 is asked again, for longer each time, or until one more host wants an instance.

        Raises:
            NoInstance: the wait is over.
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
        """End the wait for capacity after a while.

        Where others train on, a further host is waited for without end; a job with ``max_wait`` is ended by that.

        Raises:
            NoInstance: the wait is over.
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
        """Look at the instances, end those that nobody has, and reckon what all cost, until the job's end."""
        while True:
            self._news.clear()
            # What fails is done again at the next look, and neither keeps the other from being done.
            with contextlib.suppress(Exception):
                await self._look(api)
            with contextlib.suppress(Exception):
                await self._check_cost(api)
            awaited = any(slot.booting for slot in self._slots)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._options.poll * (1 if awaited else _SLOWLY), self._news.wait())

    async def _look(self, api: Ec2Api) -> None:
        """Take what EC2 says of the fleet, and end the instances that nobody has."""
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
            if self._unanswered:  # they may be the failed request's, whose next answer names them
                owned |= found.keys() - self._named
            nobodys = [one.id for one in found.values() if not one.gone and one.id not in owned]
            await self._background.call(lambda: api.terminate(nobodys))

    # --- money ---

    async def _check_cost(self, api: Ec2Api) -> None:
        """Note what the instances cost, and have the job stopped where that is too much."""
        if _now() - self._priced >= _PRICES_S:
            price, days = self._options.on_demand_price, _PRICE_DAYS if self._spot else 0.0
            with contextlib.suppress(Exception):  # who may not ask for prices trains all the same
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
