"""A job's instances: asked for, watched, ended. In the supervisor's loop; the API is asked in threads.

EC2's own answer says which instances there are. One that is gone is told to whoever has it; one that nobody has is
ended.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from container.system.background import Background
from container.system.holding import hold
from container.system.loop import Loop, Timer
from estimators.backends.ec2 import prices, requests
from estimators.backends.ec2.api import ApiError, Ec2Api, Instance, Made, failure_of
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import Answer, Lifecycle, Pool, Search, Shortage, Wanted

T = TypeVar("T")

#: How many instances in a row may fail to start for one host.
_STARTS = 3
#: For how long EC2 may not know an instance that it has launched itself, in seconds.
_UNSEEN_S = 60.0
#: How often prices are asked for, and for how many days back, in seconds and days.
_PRICES_S, _PRICE_DAYS = 300.0, 1.0
#: How often the watch looks where nothing is awaited, in its usual intervals.
_SLOWLY = 5


class _Stage(enum.Enum):
    ASKED = "asked for"
    BOOTING = "booting"
    STARTING = "starting"  # it is connected to and prepared
    THERE = "there"


@dataclasses.dataclass(kw_only=True)
class _Slot:
    """One host's place: what is there for it, and who waits."""

    found: Callable[[Instance], None]
    failed: Callable[[str], None]
    stage: _Stage = _Stage.ASKED
    instance: str = ""
    launched: float = 0.0  # on the clock of the loop
    starts: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    notice: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """How a fleet tells what happens.

    Attributes:
        say: Takes what is being waited for.
        gone: A host's instance is gone, and why.
        stale: That of a host that was not there yet is not used; another one comes.
        limit: The job has to be stopped, and why.
        cost: What it has cost.
    """

    say: Callable[[str], None]
    gone: Callable[[str, str], None]
    stale: Callable[[str], None]
    limit: Callable[[str], None]
    cost: Callable[[prices.Cost], None]


class Ec2Fleet:
    """The instances of one job.

    Args:
        loop: The supervisor's loop.
        api: Makes what speaks to EC2; called in a thread.
        make: Makes what the hosts have in common; likewise.
        fleet: Its tag.
        tags: All tags.
        options: What the job asks for.
        types: The instance types, the job's own first.
        spot: Whether spot capacity is wanted.
        together: Whether the hosts train together from the start: all or none, in one zone.
        waits: Whether somebody else bounds the wait for capacity.
        events: Who is told.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        api: Callable[[], Ec2Api],
        make: Callable[[Ec2Api], Made],
        fleet: str,
        tags: Mapping[str, str],
        options: Ec2Options,
        types: tuple[str, ...],
        spot: bool,
        together: bool,
        waits: bool,
        events: Events,
    ) -> None:
        self._loop = loop
        self._background = Background(loop)
        self._new_api, self._make = api, make
        self._fleet, self._tags = fleet, tags
        self._options, self._types = options, types
        self._spot, self._together, self._waits = spot, together, waits
        self._events = events
        self._api: Ec2Api | None = None
        self._made: Made | None = None
        self._slots: dict[str, _Slot] = {}
        self._doomed: set[str] = set()  # instances that nobody wants
        self._left: set[str] = set()  # such that EC2 is about to end
        self._known: dict[str, Instance] = {}
        self._spans: dict[str, prices.Span] = {}
        self._prices = prices.Prices({}, ())
        self._priced = -math.inf
        self._busy = False  # a request is under way, or what hosts have in common is made
        self._asks: Timer | None = None
        self._request: tuple[Wanted, tuple[Pool, ...], str] | None = None  # of which nobody knows what came
        self._number = 0  # of requests
        self._step = self._pass = 0
        self._since: float | None = None  # when the wait for capacity began
        self._watch: Timer | None = None
        self._looking = False
        self._limited = False
        self._closed = False

    # --- what hosts want ---

    def want(self, host: str, found: Callable[[Instance], None], failed: Callable[[str], None]) -> None:
        """Get an instance for a host, and call one of the two. What is wanted at once is asked for together."""
        self._slots[host] = _Slot(found=found, failed=failed)
        self._ask_in(0.0)

    def bad(self, host: str, instance: str, reason: str) -> None:
        """A host's instance cannot be used: it never answers, say. Another one is tried, a few times."""
        slot = self._slots.get(host)
        if slot is None or slot.instance != instance:
            return
        self._end(instance)
        self._start_failed(host, slot, reason)

    def ready(self, host: str) -> None:
        """A host's instance is in use."""
        if (slot := self._slots.get(host)) is not None:
            slot.stage = _Stage.THERE
            slot.starts = 0

    def notice(self, host: str) -> None:
        """EC2 has said that it takes a host's instance."""
        if (slot := self._slots.get(host)) is not None:
            slot.notice = True

    def drop(self, host: str) -> bool:
        """A host is not needed any more.

        Returns:
            Whether its instance is left for EC2 to end: it was told to go in its first hour, which is not billed then.
        """
        slot = self._slots.pop(host, None)
        if slot is None or not slot.instance:
            return False
        known = self._known.get(slot.instance)
        if slot.notice and known is not None and not known.gone and time.time() - known.launched < 3600:
            self._left.add(slot.instance)
            return True
        self._end(slot.instance)
        return False

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        for timer in (self._asks, self._watch):
            if timer is not None:
                timer.cancel()
        self._events.cost(self.cost())

    @property
    def region(self) -> str:
        """The region; only when something was found."""
        assert self._api is not None
        return self._api.region

    def cost(self) -> prices.Cost:
        """Return what the instances have cost until now."""
        return prices.cost_of(self._spans.values(), self._prices, time.time())

    # --- asking ---

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        def unless_closed(value: T) -> None:
            if not self._closed:
                then(value)

        self._background.run(work, unless_closed, lambda error: None if self._closed else failed(error))

    def _ask_in(self, seconds: float) -> None:
        if self._asks is not None:
            self._asks.cancel()
        self._asks = self._loop.call_later(seconds, self._ask)

    def _ask(self) -> None:
        self._asks = None
        if self._busy or self._closed or not self._wanting():
            return
        if self._made is None:
            self._prepare()
            return
        if self._request is None:
            search = self._search(len(self._wanting()), self._made)
            rounds = search.rounds()
            self._step %= len(rounds)
            wanted, pools = rounds[self._step]
            self._number += 1
            self._request = (wanted, pools, f"{self._fleet}-{self._number}")
        wanted, pools, token = self._request
        self._since = self._since if self._since is not None else time.monotonic()
        api, template = self._api, self._made.template
        assert api is not None

        def launch() -> Answer:
            answer = api.launch(wanted, pools, template=template, tags=self._tags, token=token)
            hold("ec2.launched")
            return answer

        self._busy = True
        self._in_thread(launch, self._answered, self._unanswered)

    def _wanting(self) -> list[str]:
        return [host for host, slot in self._slots.items() if slot.stage is _Stage.ASKED]

    def _search(self, hosts: int, made: Made) -> Search:
        places = made.places
        mine = [self._known[slot.instance] for slot in self._slots.values() if slot.instance in self._known]
        zones = {one.zone for one in mine if not one.gone}
        if self._together and zones:  # to the others of its gang
            places = tuple(place for place in places if place[0] in zones) or places
        on_demand = sum(one.lifecycle is Lifecycle.ON_DEMAND for one in mine if not one.gone)
        most = self._options.max_price_per_hour
        return Search(
            hosts=hosts,
            types=self._types,
            places=places,
            spot=self._spot,
            on_demand_base=max(0, self._options.on_demand_base - on_demand),
            fallback=self._options.on_demand_fallback,
            together=self._together,
            max_total_price=max(0.0001, most - self._hourly()) if most is not None and self._spot else None,
        )

    def _prepare(self) -> None:
        def work() -> tuple[Ec2Api, Made]:
            api = self._api or self._new_api()
            return api, self._make(api)

        def made(found: tuple[Ec2Api, Made]) -> None:
            self._busy = False
            self._api, self._made = found
            self._ask()

        def failed(error: Exception) -> None:
            self._busy = False
            failure = failure_of(error)
            if (
                failure is not None
                and requests.kind_of(failure.code) is requests.ErrorMeaning.PASSES
                and not self._too_late()
            ):
                self._since = self._since if self._since is not None else time.monotonic()
                self._wait(f"a request to EC2 failed ({failure})")
                return
            self._fail_all(requests.explain(failure) if failure is not None else str(error).rstrip("."))

        self._busy = True
        self._events.say("Creating a key pair, a security group and a launch template for the hosts")
        self._in_thread(work, made, failed)

    def _unanswered(self, error: Exception) -> None:
        """Nobody knows what came of a request: it is made again with its token."""
        self._busy = False
        if not isinstance(error, ApiError):
            self._fail_all(f"{type(error).__name__}: {error}")
        elif self._too_late():
            self._fail_all(str(error).rstrip("."))
        else:
            self._wait(f"a request to EC2 failed ({error.shortage})")

    def _answered(self, answer: Answer) -> None:
        self._busy = False
        self._request = None
        waiting = self._wanting()
        for host, launched in zip(waiting, answer.launched, strict=False):
            slot = self._slots[host]
            slot.stage, slot.instance, slot.launched = _Stage.BOOTING, launched.id, time.monotonic()
            slot.starts += 1
        for launched in answer.launched[len(waiting) :]:  # who wanted it is gone
            self._end(launched.id)
        if answer.launched:
            count = len(answer.launched)
            self._events.say(f"{count} instance{'s' if count > 1 else ''} launched; waiting for startup")
            self._step = self._pass = 0
            self._since = None
            self._look_in(0.0)
            if self._wanting():
                self._ask_in(requests.wait_before(1))
            return
        if not waiting:
            return
        if (reason := answer.hopeless) is not None:
            self._fail_all(requests.explain(reason))
            return
        assert self._made is not None
        self._step += 1
        if self._step < len(self._search(len(waiting), self._made).rounds()):
            self._ask_in(0.0)
            return
        if self._too_late():
            self._fail_all(
                f"EC2 had no capacity within {self._options.capacity_timeout:g} s ({_list(answer.shortages)}). Allow "
                "more types or zones (backend_options={'types': […]}), or wait longer with max_wait"
            )
            return
        self._step = 0
        self._wait(f"EC2 has no capacity ({_list(answer.shortages)})")

    def _too_late(self) -> bool:
        """Whether the wait for capacity is over; where others train on, a further host is waited for without end."""
        trains = not self._together and any(slot.stage is _Stage.THERE for slot in self._slots.values())
        return (
            not (self._waits or trains)
            and self._since is not None
            and time.monotonic() - self._since > self._options.capacity_timeout
        )

    def _wait(self, why: str) -> None:
        self._pass += 1
        seconds = requests.wait_before(self._pass) * min(1.0, self._options.poll / 2.0)
        self._events.say(f"{why}; trying again in {seconds:.0f} s")
        self._ask_in(seconds)

    def _fail_all(self, reason: str) -> None:
        self._request = None
        self._since = None
        self._step = self._pass = 0
        for host in self._wanting():
            slot = self._slots.pop(host)
            slot.failed("; ".join([*slot.reasons, reason]))

    def _start_failed(self, host: str, slot: _Slot, reason: str) -> None:
        slot.reasons.append(f"{slot.instance}: {reason}")
        self._events.stale(host)
        if slot.starts >= _STARTS:
            del self._slots[host]
            slot.failed("; ".join(slot.reasons))
            return
        self._events.say(f"{slot.instance} could not be used ({reason}); requesting another one")
        slot.stage, slot.instance = _Stage.ASKED, ""
        self._ask_in(0.0)

    # --- watching ---

    def _look_in(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        api = self._api
        if self._looking or self._closed or api is None:
            return
        self._looking = True
        mine = [slot.instance for slot in self._slots.values() if slot.instance]
        known = [*mine, *self._doomed, *self._left]
        quiet = not self._busy and self._request is None
        asked = self._number
        with_prices = time.monotonic() - self._priced >= _PRICES_S
        lacking = [type_ for type_ in self._types if type_ not in self._prices.on_demand]

        def work() -> tuple[dict[str, Instance], prices.Prices | None]:
            found = api.describe(self._fleet, known)
            return found, self._ask_prices(api, lacking) if with_prices else None

        def seen(result: tuple[dict[str, Instance], prices.Prices | None]) -> None:
            self._looking = False
            found, priced = result
            if priced is not None:
                self._priced = time.monotonic()
                self._prices = priced
            self._take(found, strays=quiet and asked == self._number)
            again()

        def failed(error: Exception) -> None:
            self._looking = False
            again()

        def again() -> None:
            awaited = any(slot.stage is _Stage.BOOTING for slot in self._slots.values()) or self._doomed
            self._look_in(self._options.poll * (1 if awaited else _SLOWLY))

        self._in_thread(work, seen, failed)

    def _ask_prices(self, api: Ec2Api, lacking: list[str]) -> prices.Prices | None:
        on_demand = dict(self._prices.on_demand)
        for type_ in lacking:
            price = self._options.on_demand_price or api.on_demand_price(type_)
            if price is not None:
                on_demand[type_] = price
        try:
            spot = api.spot_prices(self._types, days=_PRICE_DAYS) if self._spot else []
        except (BotoCoreError, ClientError):  # who may not ask for prices trains all the same
            return None
        return prices.Prices(on_demand, spot)

    def _take(self, found: dict[str, Instance], *, strays: bool) -> None:
        """Look at EC2's answer."""
        self._known = found
        for one in found.values():
            self._count(one)
        for host, slot in list(self._slots.items()):
            if slot.instance:
                self._see(host, slot, found.get(slot.instance))
        for wanted in (self._doomed, self._left):
            for instance in list(wanted):
                if instance in found and found[instance].gone:
                    wanted.discard(instance)
        mine = {slot.instance for slot in self._slots.values()} | self._left
        if strays:  # an answer that was lost had launched them
            self._doomed |= {one.id for one in found.values() if not one.gone and one.id not in mine}
        self._terminate()
        self._check_cost()

    def _see(self, host: str, slot: _Slot, one: Instance | None) -> None:
        if one is None:  # one that was seen is known for an hour after its end
            if slot.stage is not _Stage.BOOTING or time.monotonic() - slot.launched < _UNSEEN_S:
                return
            reason = "EC2 no longer lists the instance"
        elif one.gone:
            reason = "EC2 has taken it back" if one.taken else f"it has ended ({one.reason or one.state})"
        else:
            if slot.stage is _Stage.BOOTING and one.state == "running" and one.private_address:
                self._is_there(host, slot, one)
            return
        if slot.stage is not _Stage.THERE:
            self._start_failed(host, slot, reason)
            return
        del self._slots[host]
        self._events.gone(host, reason)

    def _is_there(self, host: str, slot: _Slot, one: Instance) -> None:
        if self._options.reach == "public" and not one.public_address:
            self._end(one.id)
            del self._slots[host]
            slot.failed(
                f"{one.id} has no public address; name subnets that assign one, or use the private addresses with "
                "backend_options={'reach': 'private'}"
            )
            return
        slot.stage = _Stage.STARTING
        slot.found(one)

    def _end(self, instance: str) -> None:
        if instance:
            self._doomed.add(instance)
            self._terminate()

    def _terminate(self) -> None:
        doomed, api = sorted(self._doomed), self._api
        if doomed and api is not None and not self._closed:
            # What is not gone at the next look is told again.
            self._in_thread(lambda: api.terminate(doomed), lambda _: self._look_in(self._options.poll), lambda _: None)

    # --- money ---

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
        self._events.cost(cost)
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
            self._events.limit(text)


def _list(shortages: tuple[Shortage, ...]) -> str:
    texts = [str(shortage) for shortage in shortages]
    return (
        ", ".join([*texts[:4], *([f"and {len(texts) - 4} more pools"] if len(texts) > 4 else [])]) or "no reason given"
    )
