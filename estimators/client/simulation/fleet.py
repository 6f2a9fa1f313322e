"""Recommend a fleet of spot and on-demand hosts for ``recommend(spot=True)``.

The recommendation contains the numbers of hosts. It also says whether the job should be elastic, or restart from
checkpoints after interruptions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, overload

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from estimators.client.simulation.forecast import Forecast, simulate
from estimators.client.simulation.model import RunOutcome, Timings
from estimators.job import instances
from estimators.job.bounds import MAX_HOSTS
from estimators.job.errors import ConfigurationError
from estimators.job.spot_market import SpotMarket
from estimators.results.advice import recommending
from estimators.results.advice.calibration import Calibration
from estimators.results.advice.model import CPU, GPU, Constants
from estimators.results.advice.recommending import STRATEGIES, Recommendation, Recommended
from estimators.results.result import Result
from estimators.results.summary import dollars_text, percent_text, time_text

#: Fleets whose mean cost is higher than the lowest mean cost by at most this fraction count as equally expensive. The
#: fastest of these fleets is preferred.
_ALIKE = 0.05
#: A fleet meets the limits if at least this fraction of its simulated runs completes and keeps both limits.
_MOST_RUNS = 0.95
#: Factor by which the rate of interruptions is multiplied for the pessimistic forecast.
_WORSE = 3.0
#: Maximum number of simulated runs of each fleet in the comparison. The recommended fleet is then simulated with the
#: requested number of runs.
_FEW_RUNS = 40


@dataclass(frozen=True)
class FleetRecommendation(Recommended):
    """The recommended fleet of hosts on a spot market, and the other fleets that were considered.

    Attributes:
        options: A forecast for each fleet. The recommended fleet is first.
        worse: A pessimistic forecast for the recommended fleet, with interruptions three times as often.
        reasons: The reasons for the recommendation, in sentences.
        instance_type: The instance type of the hosts, or None.
    """

    options: tuple[Forecast, ...]
    worse: Forecast
    reasons: tuple[str, ...]
    instance_type: str | None = None

    @property
    def choice(self) -> Forecast:
        """Return the forecast for the recommended fleet."""
        return self.options[0]

    @property
    def title(self) -> str:
        """Return the recommended fleet as one line of text."""
        one = self.choice
        what = "commit" if one.elastic else "checkpoint"
        where = f" of {self.instance_type}" if self.instance_type else ""
        return (
            f"{self.strategy} on {_hosts_text(one)} hosts{where}, {one.job.on_demand} of them on demand, "
            f"a {what} every {time_text(one.job.every_s)}"
        )

    @property
    def strategy(self) -> str:
        """Return the recommended strategy: ``elastic_horovod``, or ``mpi`` with restarts from checkpoints."""
        return _strategy(self.choice)

    @property
    def hosts(self) -> tuple[int, int]:
        """Return the recommended minimum and maximum numbers of hosts."""
        return self.choice.job.least, self.choice.job.most

    @property
    def on_demand_base(self) -> int:
        """Return the recommended number of hosts to buy on demand."""
        return self.choice.job.on_demand

    @property
    def commit_every(self) -> float:
        """Return the time between two commits or checkpoints, in seconds."""
        return self.choice.job.every_s

    def rows(self) -> list[list[str]]:
        """Return the comparison of the fleets as rows of texts. The first row is the heading."""
        found = [["strategy", "hosts", "on demand", "time (90 % range)", "cost (90 % range)", "goodput"]]
        for one in self.options:
            cost = one.cost
            assert cost is not None
            found.append(
                [
                    _strategy(one), _hosts_text(one), str(one.job.on_demand),
                    f"{time_text(one.seconds.mean)} ({time_text(one.seconds.low)} to {time_text(one.seconds.high)})",
                    f"{dollars_text(cost.mean)} ({dollars_text(cost.low)} to {dollars_text(cost.high)})",
                    percent_text(one.goodput.mean),
                ]
            )  # fmt: skip
        return found

    def __repr__(self) -> str:
        return str(self)


@overload
def recommend(model: Any, *, spot: Literal[False] = False, **options: Any) -> Recommendation: ...


@overload
def recommend(model: Any, *, spot: Literal[True], **options: Any) -> FleetRecommendation: ...


@suggests_arguments  # type: ignore[misc]
def recommend(  # the overloads declare the type of the result
    model: Any,
    *,
    hosts: int = 1,
    processes_per_host: int | None = None,
    instance_type: str | None = None,
    bandwidth_gbps: float | None = None,
    device: str | None = None,
    compute_s: float | None = None,
    batch_size: int | None = None,
    strategies: Sequence[str] = STRATEGIES,
    constants: Constants | None = None,
    calibration: Calibration | None = None,
    spot: bool = False,
    deadline: float | None = None,
    budget: float | None = None,
    market: SpotMarket | None = None,
    prices: tuple[float, float] | None = None,
    records: float | None = None,
    epochs: float | None = None,
    timings: Timings | None = None,
    runs: int = 200,
) -> Recommendation | FleetRecommendation:
    """Recommend a strategy or a fleet.

    Without ``spot``, the time of a step under each strategy is predicted, and a strategy is recommended. With
    ``spot``, fleets on interruptible hosts are simulated, and a fleet is recommended.

    Args:
        model: A :class:`~estimators.Result` of a run (preferably with one process), a Keras model, the name of a
            published model (``vgg16``, ``resnet50`` …), or a number of parameters.
        hosts: The number of hosts. With ``spot``, the maximum number of hosts. If a larger instance type has as many
            devices as all hosts together, the result also considers a single host of that type.
        processes_per_host: The number of processes (devices) on each host. The default is the number of GPUs of the
            instance type, or 1 without GPUs.
        instance_type: The instance type of SageMaker, which determines devices, network and prices.
        bandwidth_gbps: The bandwidth of a host's network link in Gbit/s. The default is the bandwidth of the instance
            type.
        device: The kind of device: ``"cpu"`` or ``"gpu"``. The default is the kind of the instance type's devices, or
            ``"cpu"`` if the instance type is not known.
        compute_s: The time that one process needs to compute its part of a step if no other process runs, in seconds.
            The default is taken from the result.
        batch_size: The number of records in one process's part of a step. The default is taken from the result, or is
            1.
        strategies: The strategies to choose from. With ``spot``, this argument is ignored.
        constants: Constants of the cost model, such as the speed of a library. They replace the built-in constants for
            the device.
        calibration: The measurements of ``fleetfit calibrate``. The default is the stored calibration for the instance
            type.
        spot: Whether hosts may be interrupted. With True, a :class:`FleetRecommendation` is returned.
        deadline: The maximum duration in seconds. At least 95 % of the simulated runs must keep the deadline and the
            budget.
        budget: The maximum cost in US dollars.
        market: The spot market, which determines when hosts are interrupted.
        prices: The prices ``(spot, on demand)`` in US dollars per host and hour. The on-demand price may be None if
            the price of the instance type is known.
        records: The number of records to train on, over all epochs, as for :func:`~estimators.planning.simulate`.
        epochs: The number of epochs, as an alternative to ``records`` if ``model`` is a result.
        timings: The durations of the job's phases.
        runs: The number of simulated runs of the recommended fleet.

    Raises:
        ConfigurationError: an argument is missing, unknown or out of range. The message names the argument.
    """
    if not spot:
        given = {
            "deadline": deadline, "budget": budget, "market": market, "prices": prices, "records": records,
            "epochs": epochs, "timings": timings,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                raise ConfigurationError(f"recommend({name}=…) needs spot=True.")
        return recommending.recommend(
            model, hosts=hosts, processes_per_host=processes_per_host, instance_type=instance_type,
            bandwidth_gbps=bandwidth_gbps, device=device, compute_s=compute_s, batch_size=batch_size,
            strategies=strategies, constants=constants, calibration=calibration,
        )  # fmt: skip
    if market is None:
        raise ConfigurationError("recommend(spot=True) needs market=SpotMarket(rate=…), the rate of interruptions.")
    for name, value in (("deadline", deadline), ("budget", budget)):
        if value is not None:
            rules.above_0("a number above 0")(f"recommend({name}=…)", value)
    rules.whole(1, MAX_HOSTS)("recommend(hosts=…)", hosts)
    known = instances.describe(instance_type) if instance_type is not None else None
    gpus = known.gpus if known is not None else 0
    kind = device or ("gpu" if gpus else "cpu")
    has_own_speed = isinstance(model, Result) and compute_s is None and batch_size is None
    common: dict[str, Any] = {
        "records": records,
        "epochs": epochs,
        "prices": _prices(prices, known.on_demand if known is not None else None),
        "timings": timings,
        "constants": constants or (GPU if kind == "gpu" else CPU),
        "processes_per_host": processes_per_host or (None if has_own_speed else gpus or 1),
        "bandwidth_gbps": bandwidth_gbps or (known.network_gbps if known is not None else None),
    }
    job = model if has_own_speed else recommending.workload_of(model, compute_s, batch_size)
    found = [
        simulate(job, hosts=size, on_demand_base=base, market=market, runs=min(runs, _FEW_RUNS), **common)
        for size, base in _fleets(hosts)
    ]
    found = ranked(found, deadline, budget)
    best = found[0]

    def again(one: SpotMarket) -> Forecast:
        size = (best.job.least, best.job.most) if best.elastic else best.job.most
        base, every = best.job.on_demand, best.job.every_s
        return simulate(job, hosts=size, on_demand_base=base, commit_every=every, market=one, runs=runs, **common)

    found[0] = again(market)
    worse = again(dataclasses.replace(market, rate=market.rate * _WORSE))
    return FleetRecommendation(tuple(found), worse, tuple(_reasons(found[0], worse, deadline, budget)), instance_type)


def _prices(prices: Any, on_demand: float | None) -> Any:
    if isinstance(prices, tuple | list) and len(prices) == 2 and prices[1] is None and on_demand is not None:
        return prices[0], on_demand
    if prices is None:
        raise ConfigurationError("recommend(spot=True) needs prices=(spot, on demand), in dollars per host and hour.")
    return prices


def _fleets(most: int) -> list[tuple[int | tuple[int, int], int]]:
    """Return the fleets to compare.

    Returns:
        For each fleet, a pair of the argument ``hosts`` of :func:`simulate` and the number of on-demand hosts.
    """
    found: list[tuple[int | tuple[int, int], int]] = []
    for size in sorted({most, max(1, most // 2), max(1, most // 4)}, reverse=True):
        for base in sorted({0, 1, size // 4, size}):
            found.append((size, base))
            if base < size:
                found.append(((max(1, size // 4), size), base))
    return found


def meets(one: Forecast, deadline: float | None, budget: float | None) -> bool:
    """Return whether at least 95 % of a fleet's runs complete, meet the deadline and stay within the budget."""

    def good(run: RunOutcome) -> bool:
        cost = one.cost_of(run)
        return (
            run.completed
            and (deadline is None or run.seconds <= deadline)
            and (budget is None or (cost is not None and cost <= budget))
        )

    return sum(map(good, one.runs)) >= _MOST_RUNS * len(one.runs)


def ranked(found: Sequence[Forecast], deadline: float | None, budget: float | None) -> list[Forecast]:
    """Return the fleets in the order of preference.

    Fleets that meet the limits come first, sorted by cost. Of the fleets that cost about as much as the cheapest fleet,
    the fastest one is first. Fleets that do not meet the limits follow. They are sorted by how far they exceed the
    limits.
    """

    def dollars(one: Forecast) -> float:
        return one.cost.mean if one.cost is not None else math.inf

    def excess(one: Forecast) -> float:
        over = [1.0]
        if deadline is not None:
            over.append(one.seconds.high / deadline)
        if budget is not None and one.cost is not None:
            over.append(one.cost.high / budget)
        return max(over) if one.completed >= _MOST_RUNS else math.inf

    good = [one for one in found if meets(one, deadline, budget)]
    others = sorted((one for one in found if one not in good), key=lambda one: (excess(one), dollars(one)))
    if good:
        least = min(map(dollars, good))
        alike = [one for one in good if dollars(one) <= least * (1 + _ALIKE)]
        rest = [one for one in good if dollars(one) > least * (1 + _ALIKE)]
        good = [*sorted(alike, key=lambda one: one.seconds.mean), *sorted(rest, key=dollars)]
    return [*good, *others]


def _strategy(one: Forecast) -> str:
    return "elastic_horovod" if one.elastic else "mpi"


def _hosts_text(one: Forecast) -> str:
    return f"{one.job.least} to {one.job.most}" if one.elastic else str(one.job.most)


def _reasons(one: Forecast, worse: Forecast, deadline: float | None, budget: float | None) -> list[str]:
    cost, dearer = one.cost, worse.cost
    assert cost is not None and dearer is not None
    found = [
        f"{time_text(one.seconds.mean)}, {time_text(one.seconds.low)} to {time_text(one.seconds.high)} in 90 % of the "
        f"runs; {dollars_text(cost.mean)}, {dollars_text(cost.low)} to {dollars_text(cost.high)}."
    ]
    if (other := one.on_demand_cost) is not None:
        found.append(f"The same hosts on demand: {dollars_text(other)}.")
    limits = [f"{time_text(deadline)}"] * (deadline is not None) + [f"{dollars_text(budget)}"] * (budget is not None)
    if limits and not meets(one, deadline, budget):
        found.append(f"No fleet meets {' and '.join(limits)} in 95 % of its runs. This fleet comes closest.")
    found.append(
        f"If hosts are interrupted three times as often: {time_text(worse.seconds.mean)} and "
        f"{dollars_text(dearer.mean)}, and {percent_text(worse.completed)} of the runs complete."
    )
    return found
