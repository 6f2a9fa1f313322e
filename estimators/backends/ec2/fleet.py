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
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from container.system.asyncio_loop import AsyncioLoop, within
from container.system.background import Background
from container.system.holding import hold
from estimators.backends.ec2 import prices, requests
from estimators.backends.ec2.api import ApiError, Ec2Api, Instance, Made, failure_of
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import Answer, Launched, Lifecycle, Pool, Search, Shortage, Wanted
from estimators.backends.hosts.provider import HostError, HostLost, HostUnavailable

T = TypeVar("T")

#: For how long EC2 may not know an instance that it has launched itself, in seconds.
_UNSEEN_S = 60.0
#: How often prices are asked for, and for how many days back, in seconds and days.
_PRICES_S, _PRICE_DAYS = 300.0, 1.0
#: How often the watch looks where nothing is awaited, in its usual intervals.
_SLOWLY = 5
#: What is taken back so soon after its launch is not billed, in seconds.
_FREE_S = 3600.0


class NoInstance(HostUnavailable):
    """Tell that EC2 gives no instance, or none that will do."""


class Slot:
    """Follow one host's instance, from the wish for it to its end.

    Attributes:
        id: The instance; "" until EC2 has launched it.
        launched: When, on the loop's clock.
        running: The instance, when it runs.
        over: Why there is none, or none any more.
        used: Whether a host is on it.
        noticed: Whether EC2 has said that it takes it.
    """

    def __init__(self, loop: AsyncioLoop) -> None:
        self.id = ""
        self.launched = 0.0
        self.running: asyncio.Future[Instance] = loop.create_future()
        self.over: asyncio.Future[HostError] = loop.create_future()
        self.used = self.noticed = False

    @property
    def wanting(self) -> bool:
        """Return whether an instance is to be launched for it."""
        return not self.id and not self.over.done()

    @property
    def booting(self) -> bool:
        """Return whether its instance does not run yet."""
        return bool(self.id) and not self.running.done() and not self.over.done()

    async def boot(self) -> Instance:
        """Wait until the instance runs.

        Raises:
            NoInstance: there will be none; with the reason.
            HostLost: it has ended before; with the reason.
        """
        await asyncio.wait((self.running, self.over), return_when=asyncio.FIRST_COMPLETED)
        if self.over.done():
            raise self.over.result()
        return self.running.result()

    async def until_gone(self) -> str:
        """Wait until the instance is gone, and return the reason."""
        await asyncio.wait((self.over,))
        return str(self.over.result())

    def end(self, reason: HostError) -> None:
        """Note that there is no instance; the first reason counts."""
        if not self.over.done():
            self.over.set_result(reason)


class Ec2Fleet:
    """Launch, watch and end the instances of one job.

    Args:
        loop: The supervisor's loop.
        make: Makes what speaks to EC2, and what the hosts have in common; called in a thread.
        fleet: Its tag.
        tags: All tags.
        options: What the job asks for.
        types: The instance types, the job's own first.
        spot: Whether spot capacity is wanted.
        together: Whether the hosts train together from the start: all or none, in one zone.
        waits: Whether somebody else bounds the wait for capacity.
        say: Takes what is being waited for.
        limit: Told once that the job has to be stopped, and why.
        note: Takes what the fleet has cost.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        *,
        make: Callable[[], tuple[Ec2Api, Made]],
        fleet: str,
        tags: Mapping[str, str],
        options: Ec2Options,
        types: tuple[str, ...],
        spot: bool,
        together: bool,
        waits: bool,
        say: Callable[[str], None],
        limit: Callable[[str], None],
        note: Callable[[prices.Cost], None],
    ) -> None:
        self._loop = loop
        self._make = make
        self._fleet, self._tags = fleet, tags
        self._options, self._types = options, types
        self._spot, self._together, self._waits = spot, together, waits
        self._say, self._limit, self._note = say, limit, note
        self._made: tuple[Ec2Api, Made] | None = None
        self._slots: list[Slot] = []
        self._doomed: set[str] = set()  # instances that nobody wants
        self._left: set[str] = set()  # such that EC2 is about to end
        self._known: dict[str, Instance] = {}
        self._spans: dict[str, prices.Span] = {}
        self._prices = prices.Prices({}, ())
        self._priced = -math.inf
        self._limited = False
        self._asked = self._answered = 0  # requests
        self._since, self._passes = 0.0, 0  # of the wait for capacity
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._one_more = asyncio.Event()  # a host wants an instance
        self._news = asyncio.Event()  # an instance was launched, or is to be ended

    # --- what hosts want ---

    def want(self) -> Slot:
        """Have an instance launched for a host. What is wanted at once is asked for together."""
        slot = Slot(self._loop)
        self._slots.append(slot)
        self._one_more.set()
        if self._asking is None:
            self._asking = self._loop.start(self._ask())
        return slot

    def drop(self, slot: Slot) -> bool:
        """End a host's instance, which it does not need any more.

        Returns:
            Whether it is left for EC2 to end: it was told to go in its first hour, which is not billed then.
        """
        self._slots.remove(slot)
        if not slot.id or slot.over.done():
            return False
        known = self._known.get(slot.id)
        if slot.noticed and known is not None and time.time() - known.launched < _FREE_S:
            self._left.add(slot.id)
            return True
        self._doom(slot.id)
        return False

    def close(self) -> None:
        """Stop asking and watching."""
        for task in (self._asking, self._watching):
            if task is not None:
                task.cancel()

    def cost(self) -> prices.Cost:
        """Return what the instances have cost until now."""
        return prices.cost_of(self._spans.values(), self._prices, time.time())

    async def _call(self, work: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """Do what blocks in a thread."""
        return await Background.of(self._loop).call(functools.partial(work, *arguments, **more))

    async def _try(self, work: Callable[..., T], *arguments: Any, **more: Any) -> T | None:
        """Do what blocks in a thread; None if it fails, for whatever reason: it is done again at the next look."""
        with contextlib.suppress(Exception):
            return await self._call(work, *arguments, **more)
        return None

    # --- asking ---

    async def _ask(self) -> None:
        """Ask for instances until each host that wants one has one, or none can be had."""
        try:
            self._begin()
            if self._made is None:
                self._made = await self._prepare()
                self._begin()
            api, made = self._made
            step = 0
            while self._wanting():
                rounds = self._search(made).rounds()
                answer = await self._request(api, made, *rounds[step % len(rounds)])
                if answer.launched:
                    self._hand_out(answer.launched)
                    self._begin()
                    step = 0
                    if self._wanting():
                        await self._pause(requests.wait_before(1))
                elif not self._wanting():
                    break
                elif (reason := answer.hopeless) is not None:
                    raise NoInstance(requests.explain(reason))
                elif step + 1 < len(self._search(made).rounds()):
                    step += 1
                else:
                    step = 0
                    lacking = _list(answer.shortages)
                    limit = self._options.capacity_timeout
                    await self._wait(
                        f"EC2 has no capacity ({lacking})",
                        f"EC2 had no capacity within {limit:g} s ({lacking}). Allow more types or zones "
                        "(backend_options={'types': […]}), or wait longer with max_wait",
                    )
        except NoInstance as error:
            for slot in self._wanting():
                slot.end(error)
        finally:
            self._asking = None

    def _begin(self) -> None:
        """Begin to wait for capacity."""
        self._since, self._passes = time.monotonic(), 0

    def _wanting(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.wanting]

    async def _prepare(self) -> tuple[Ec2Api, Made]:
        """Make what hosts have in common."""
        while True:
            self._say("Creating a key pair, a security group and a launch template for the hosts")
            try:
                return await self._call(self._make)
            except Exception as error:
                failure = failure_of(error)
                reason = requests.explain(failure) if failure is not None else str(error).rstrip(".")
                if failure is None or requests.kind_of(failure.code) is not requests.ErrorMeaning.PASSES:
                    raise NoInstance(reason) from error
                await self._wait(f"a request to EC2 failed ({failure})", reason)

    async def _request(self, api: Ec2Api, made: Made, wanted: Wanted, pools: Sequence[Pool]) -> Answer:
        """Ask EC2, with the same token again while nobody knows what came of it: so nothing is launched twice."""
        self._asked += 1
        token = f"{self._fleet}-{self._asked}"
        try:
            while self._wanting():
                try:
                    return await self._call(
                        _launch, api, wanted, pools, template=made.template, tags=self._tags, token=token
                    )
                except ApiError as error:
                    await self._wait(f"a request to EC2 failed ({error.shortage})", str(error).rstrip("."))
                except Exception as error:
                    raise NoInstance(f"{type(error).__name__}: {error}") from error
            return Answer()
        finally:
            self._answered = self._asked

    def _search(self, made: Made) -> Search:
        places = made.places
        mine = [self._known[slot.id] for slot in self._slots if slot.id in self._known]
        zones = {one.zone for one in mine if not one.gone}
        if self._together and zones:  # to the others of its gang
            places = tuple(place for place in places if place[0] in zones) or places
        on_demand = sum(one.lifecycle is Lifecycle.ON_DEMAND for one in mine if not one.gone)
        most = self._options.max_price_per_hour
        return Search(
            hosts=len(self._wanting()),
            types=self._types,
            places=places,
            spot=self._spot,
            on_demand_base=max(0, self._options.on_demand_base - on_demand),
            fallback=self._options.on_demand_fallback,
            together=self._together,
            max_total_price=max(0.0001, most - self._hourly()) if most is not None and self._spot else None,
        )

    def _hand_out(self, launched: Sequence[Launched]) -> None:
        """Give the instances to the hosts that want some."""
        count = len(launched)
        self._say(f"{count} instance{'s' if count > 1 else ''} launched; waiting for startup")
        waiting = self._wanting()
        for slot, one in zip(waiting, launched, strict=False):
            slot.id, slot.launched = one.id, time.monotonic()
        for one in launched[len(waiting) :]:  # who wanted it is gone
            self._doom(one.id)
        self._news.set()
        if self._watching is None:
            self._watching = self._loop.start(self._watch())

    async def _wait(self, why: str, too_late: str) -> None:
        """Wait before EC2 is asked again, for longer each time.

        Where others train on, a further host is waited for without end.

        Raises:
            NoInstance: the wait for capacity is over.
        """
        trains = not self._together and any(slot.used for slot in self._slots)
        if not (self._waits or trains) and time.monotonic() - self._since > self._options.capacity_timeout:
            raise NoInstance(too_late)
        self._passes += 1
        seconds = requests.wait_before(self._passes) * min(1.0, self._options.poll / 2.0)
        self._say(f"{why}; trying again in {seconds:.0f} s")
        await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless another host wants an instance."""
        self._one_more.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._one_more.wait())

    # --- watching ---

    async def _watch(self) -> None:
        """Look at the instances, end those that nobody wants, and reckon what all cost, until the job's end."""
        assert self._made is not None
        api, _ = self._made
        while True:
            self._news.clear()
            if self._doomed:
                await self._try(api.terminate, sorted(self._doomed))
            await self._look(api)
            awaited = self._doomed or any(slot.booting for slot in self._slots)
            with contextlib.suppress(asyncio.TimeoutError):
                seconds = self._options.poll * (1 if awaited else _SLOWLY)
                await within(seconds, self._news.wait())

    async def _look(self, api: Ec2Api) -> None:
        """Take what EC2 says of the fleet."""
        settled = self._asked if self._asked == self._answered else None
        mine = [slot.id for slot in self._slots if slot.id]
        found = await self._try(api.describe, self._fleet, [*mine, *self._doomed, *self._left])
        if found is None:
            return
        if time.monotonic() - self._priced >= _PRICES_S:
            await self._ask_prices(api)
        self._known = found
        for one in found.values():
            self._count(one)
        for slot in self._slots:
            if slot.id:
                self._see(slot, found.get(slot.id))
        gone = {one.id for one in found.values() if one.gone}
        self._doomed -= gone
        self._left -= gone
        if settled == self._asked:  # an answer that was lost had launched what nobody has
            for instance in found.keys() - gone - self._left - {slot.id for slot in self._slots}:
                self._doom(instance)
        self._check_cost()

    def _see(self, slot: Slot, one: Instance | None) -> None:
        """Take what EC2 says of a host's instance; None: it does not know it."""
        if one is None:  # one that was seen is known for an hour after its end
            if slot.booting and time.monotonic() - slot.launched >= _UNSEEN_S:
                slot.end(HostLost("EC2 no longer lists the instance"))
        elif one.gone:
            slot.end(
                HostLost(
                    "EC2 has taken the instance back" if one.taken else f"it has ended ({one.reason or one.state})"
                )
            )
        elif slot.booting and one.state == "running" and one.private_address:
            slot.running.set_result(one)

    def _doom(self, instance: str) -> None:
        """Have an instance ended at the next look, which is soon."""
        if instance not in self._doomed:
            self._doomed.add(instance)
            self._news.set()

    # --- money ---

    async def _ask_prices(self, api: Ec2Api) -> None:
        on_demand = dict(self._prices.on_demand)
        for type_ in self._types:
            if type_ not in on_demand:
                price = self._options.on_demand_price or await self._try(api.on_demand_price, type_)
                on_demand |= {type_: price} if price is not None else {}
        spot = await self._try(api.spot_prices, self._types, days=_PRICE_DAYS) if self._spot else []
        if spot is not None:  # who may not ask for prices trains all the same
            self._prices = prices.Prices(on_demand, spot)
            self._priced = time.monotonic()

    def _count(self, one: Instance) -> None:
        span = self._spans.get(one.id)
        if span is None:
            began = one.launched or time.time()
            span = prices.Span(type=one.type, zone=one.zone, lifecycle=one.lifecycle, began=began)
        if one.gone and span.ended is None:
            span = dataclasses.replace(span, ended=time.time(), taken=one.taken)
        self._spans[one.id] = span

    def _hourly(self) -> float:
        return prices.hourly(self._spans.values(), self._prices)

    def _check_cost(self) -> None:
        cost = self.cost()
        self._note(cost)
        budget, most = self._options.budget, self._options.max_price_per_hour
        hourly = self._hourly()
        text = None
        if budget is not None and cost.total >= budget:
            text = f"The job was stopped: its cost of ${cost.total:.2f} has reached the budget of ${budget:.2f}."
        elif most is not None and hourly > most:
            text = f"The job was stopped: its hosts cost ${hourly:.2f} an hour, and max_price_per_hour is ${most:.2f}."
        elif (budget is not None or most is not None) and not cost.complete and self._priced > 0:
            text = (
                "The job was stopped: it has a cost limit, and the price of its hosts is unknown. Set "
                "backend_options={'on_demand_price': …}, or allow the caller to read prices (docs/ec2.md)."
            )
        if text is not None and not self._limited:
            self._limited = True
            self._limit(text)


def _launch(api: Ec2Api, *arguments: Any, **more: Any) -> Answer:
    answer = api.launch(*arguments, **more)
    hold("ec2.launched")
    return answer


def _list(shortages: Sequence[Shortage]) -> str:
    texts = [str(shortage) for shortage in shortages]
    more = [f"and {len(texts) - 4} more pools"] if len(texts) > 4 else []
    return ", ".join([*texts[:4], *more]) or "no reason given"
