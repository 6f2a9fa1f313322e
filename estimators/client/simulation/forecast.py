"""Predict a job's duration and cost on spot hosts: simulate many runs in which a market interrupts hosts."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown, suggests_arguments
from container.contract.strategies import ElasticHorovod
from estimators.client.simulation.model import RunOutcome, SimulatedJob, Timings
from estimators.client.simulation.runs import Question, outcomes
from estimators.job.bounds import MAX_HOSTS, MAX_RANKS, MAX_SECONDS, ranks_problem
from estimators.job.errors import ConfigurationError
from estimators.job.failure_policy import FailurePolicy
from estimators.job.spot_market import SpotMarket
from estimators.results.advice import calibration as calibrations
from estimators.results.advice.model import GPU, Constants, Hardware, Workload, predict
from estimators.results.result import Result
from estimators.results.summary import dollars_text, percent_text, time_text
from estimators.results.tables import terminal_width
from estimators.supervisor.elastic.policy import Limits

_HOUR = 3600.0
_MOST_DOLLARS = 1_000_000_000
#: Minimum and maximum of the time between commits that ``commit_every="auto"`` chooses, and the time that it chooses if
#: no host is ever interrupted, in seconds.
_AUTO_S = (1.0, 3600.0)
_QUIET_S = 600.0
#: A run is aborted after one day plus this many times the training time without interruptions.
_PATIENCE = 20.0
_MAX_RUNS = 100_000


@dataclass(frozen=True)
class Quantiles:
    """The distribution of a quantity over all runs.

    Attributes:
        mean: The mean.
        low: The 5 % quantile.
        median: The median.
        high: The 95 % quantile.
    """

    mean: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Return the mean and the quantiles of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], values[0])
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        return cls(statistics.fmean(values), cuts[0], cuts[9], cuts[18])


@dataclass(frozen=True)
class Forecast:
    """The result of simulating many runs of a job. ``print(forecast)`` shows a summary as text.

    A notebook shows the summary as HTML.

    Attributes:
        job: The job that was simulated.
        runs: The outcome of each run.
        elastic: Whether hosts join and leave during the training.
        spot_price: The price of a spot host in US dollars per hour, or None if unknown.
        on_demand_price: The price of an on-demand host in US dollars per hour, or None if unknown.
    """

    job: SimulatedJob
    runs: tuple[RunOutcome, ...]
    elastic: bool
    spot_price: float | None = None
    on_demand_price: float | None = None

    @property
    def completed(self) -> float:
        """Return the fraction of runs that trained on all records, from 0 to 1."""
        return sum(run.completed for run in self.runs) / len(self.runs)

    @property
    def seconds(self) -> Quantiles:
        """Return the durations of the runs from the first request for a host to the end, in seconds."""
        return Quantiles.of([run.seconds for run in self.runs])

    @property
    def cost(self) -> Quantiles | None:
        """Return the costs of the runs, for all hosts, in US dollars. Return None if a price is unknown."""
        costs = [cost for run in self.runs if (cost := self.cost_of(run)) is not None]
        return Quantiles.of(costs) if costs else None

    def cost_of(self, run: RunOutcome) -> float | None:
        """Return the cost of all hosts in one run in US dollars, or None if a price is unknown."""
        if self.spot_price is None or self.on_demand_price is None:
            return None
        return (run.spot_s * self.spot_price + run.on_demand_s * self.on_demand_price) / _HOUR

    @property
    def on_demand_cost(self) -> float | None:
        """Return the cost of the same training on on-demand hosts in US dollars, or None if the price is unknown."""
        if self.on_demand_price is None:
            return None
        timings = self.job.timings
        seconds = timings.start_s + timings.import_s + self.job.uninterrupted_s()
        return self.job.most * seconds * self.on_demand_price / _HOUR

    @property
    def goodput(self) -> Quantiles:
        """Return the speeds of the runs as fractions of the speed on all hosts without interruptions.

        The value of a run that did not complete is 0.
        """
        uninterrupted = self.job.uninterrupted_s()
        return Quantiles.of([uninterrupted / run.seconds if run.completed else 0.0 for run in self.runs])

    @property
    def resizes(self) -> Quantiles:
        """Return how often the set of training hosts changed in the runs.

        For a job that is not elastic, return how often the job was restarted.
        """
        return Quantiles.of([float(run.resizes) for run in self.runs])

    @property
    def lost_to(self) -> dict[str, float]:
        """Return what the time of an average run was spent on, as fractions that add up to 1.

        Only runs that completed are counted. If no run completed, all runs are counted.

        The keys are:

        - ``training``: the time that the training takes on all hosts without interruptions
        - ``fewer hosts``: the additional training time because there were fewer hosts
        - ``done again``: the time of training that was lost and had to be repeated
        - ``commits``: the time of commits or checkpoints
        - ``nobody trains``: the time without training: starts, changes of the hosts, and waiting for hosts
        """
        completed = [run for run in self.runs if run.completed] or list(self.runs)
        total = sum(run.seconds for run in completed)
        shares = {
            "training": self.job.uninterrupted_s() * len(completed) / total,
            "done again": sum(run.lost_s for run in completed) / total,
            "commits": sum(run.commit_s for run in completed) / total,
            "nobody trains": sum(run.idle_s for run in completed) / total,
        }
        if self.completed == 0.0:
            shares["training"] = 1.0 - sum(value for name, value in shares.items() if name != "training")
        return {**shares, "fewer hosts": max(0.0, 1.0 - sum(shares.values()))}

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON-serialisable data."""
        cost = self.cost
        return {
            "runs": len(self.runs),
            "elastic": self.elastic,
            "hosts": {"least": self.job.least, "most": self.job.most, "on_demand": self.job.on_demand},
            "every_s": self.job.every_s,
            "completed": self.completed,
            "seconds": dataclasses.asdict(self.seconds),
            "goodput": dataclasses.asdict(self.goodput),
            "resizes": dataclasses.asdict(self.resizes),
            "interruptions": dataclasses.asdict(Quantiles.of([float(run.interruptions) for run in self.runs])),
            "lost_to": self.lost_to,
            "cost": None if cost is None else dataclasses.asdict(cost),
            "on_demand_cost": self.on_demand_cost,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the summary, as pairs of a name and a value."""
        job = self.job
        kind = f"elastic, {job.least} to {job.most} hosts" if self.elastic else f"restarts, {job.most} hosts"
        what = "commit" if self.elastic else "checkpoint"
        found = [
            ("job", f"{kind} × {job.workers_per_host}, {job.on_demand} on demand, a {what} every {job.every_s:.3g} s"),
            ("runs", f"{len(self.runs):,}, {percent_text(self.completed)} of them completed"),
            ("time", _spread_text(self.seconds, time_text)),
            ("goodput", _spread_text(self.goodput, percent_text)),
            ("resizes" if self.elastic else "restarts", _spread_text(self.resizes, lambda value: f"{value:.1f}")),
            ("time goes to", ", ".join(f"{name} {percent_text(share)}" for name, share in self.lost_to.items())),
        ]
        if (cost := self.cost) is not None:
            found.append(("cost", _spread_text(cost, dollars_text)))
            if (other := self.on_demand_cost) is not None and other > 0:
                saved = 1.0 - cost.mean / other
                found.append(("on demand", f"{dollars_text(other)}; spot saves {percent_text(saved)} on average"))
        return found

    def __str__(self) -> str:
        rows, columns = self.rows(), terminal_width() or 100_000
        width = max(len(name) for name, _ in rows)
        lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
        return "\n".join(textwrap.fill(line, columns, subsequent_indent=" " * (width + 2)) for line in lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from estimators.results.html import render

        return render("client/templates/forecast", rows=self.rows())


def _spread_text(spread: Quantiles, text: Any) -> str:
    return f"{text(spread.mean)} on average, {text(spread.low)} to {text(spread.high)} in 90 % of the runs"


@suggests_arguments
def simulate(
    job: Result | Workload,
    *,
    hosts: int | tuple[int, int],
    market: SpotMarket,
    records: float | None = None,
    epochs: float | None = None,
    processes_per_host: int | None = None,
    prices: tuple[float, float] | None = None,
    on_demand_base: int = 0,
    commit_every: float | str = "auto",
    strategy: ElasticHorovod | None = None,
    failure_policy: FailurePolicy | None = None,
    timings: Timings | None = None,
    constants: Constants = GPU,
    bandwidth_gbps: float | None = None,
    runs: int = 1000,
) -> Forecast:
    """Simulate a job on hosts that a spot market interrupts. No job is started.

    Only the clock and the hosts are simulated. For an elastic job, the supervisor's real code decides which hosts are
    members. For any other job, the same code decides whether the job is started again. An interrupted host is replaced
    by a new host after the market's ``return_after_s``. If an elastic job loses all workers, it starts again from the
    last commit.

    Args:
        job: The result of a job whose speed was measured. Alternatively, a workload whose speed the cost model of
            :func:`recommend` predicts.
        hosts: For an elastic job, a pair ``(least, most)``. The job starts with ``most`` hosts. For a job that restarts
            from checkpoints after interruptions, the number of hosts.
        market: The spot market. The first run uses the market's seed, and each later run uses the next seed.
        records: The number of records to train on, over all epochs. The default is the number of records of the
            result's job.
        epochs: The number of epochs to train, as an alternative to ``records``. ``job`` must then be a result with the
            hyperparameter ``epochs``.
        processes_per_host: The number of workers on each host. The default is the number in the result, or 1 without a
            result.
        prices: The prices ``(spot, on demand)`` in US dollars per host and hour. With None, no costs are computed.
        on_demand_base: The number of hosts that are never interrupted.
        commit_every: The time between two commits, or between two checkpoints of a job that restarts, in seconds.
            ``"auto"`` uses Young's formula, the square root of 2 · (duration of a commit) · (mean time between
            interruptions).
        strategy: The strategy of an elastic job. Only its limits ``max_join``, ``max_leave`` and ``grow_every`` are
            used.
        failure_policy: The failure policy of a job that restarts. It decides whether the job is started again.
        timings: The durations of the job's phases.
        constants: The constants of the cost model.
        bandwidth_gbps: The bandwidth of a host's network link in Gbit/s, for the cost model. The default is 10.
        runs: The number of simulated runs.

    Raises:
        ConfigurationError: an argument is out of range, the result has no speed, or SimPy is not installed.
    """
    least, most = _hosts(hosts)
    timings = timings or Timings()
    per_host = processes_per_host or (job.processes_per_host if isinstance(job, Result) else 1)
    _check("processes_per_host", per_host, 1, MAX_RANKS)
    if (problem := ranks_problem(most, per_host)) is not None:
        raise ConfigurationError(f"simulate(): {problem}")
    _check("on_demand_base", on_demand_base, 0, most)
    _check("runs", runs, 1, _MAX_RUNS)
    is_elastic = not isinstance(hosts, int)
    if not is_elastic and failure_policy is not None and failure_policy.min_hosts is not None:
        least = min(least, failure_policy.min_hosts)
    cost_s = timings.commit_s if is_elastic else timings.checkpoint_s
    simulated = SimulatedJob(
        records=_records(job, records, epochs),
        rates=_rates(job, most, per_host, constants, bandwidth_gbps),
        workers_per_host=per_host,
        least=least,
        most=most,
        every_s=_every(commit_every, cost_s, market, most - on_demand_base),
        on_demand=on_demand_base,
        timings=timings,
    )
    limit_s = _PATIENCE * simulated.uninterrupted_s() + 24 * _HOUR
    rules: Limits | FailurePolicy = failure_policy or FailurePolicy()
    if is_elastic:
        rules = Limits(
            first=most,
            least=least,
            most=most,
            max_join=strategy.max_join if strategy is not None else None,
            max_leave=strategy.max_leave if strategy is not None else None,
            grow_every=strategy.grow_every if strategy is not None else 0.0,
        )
    question = Question(job=simulated, market=market, rules=rules, limit_s=limit_s)
    spot, kept = (None, None) if prices is None else _prices(prices)
    return Forecast(simulated, outcomes(question, runs), is_elastic, spot, kept)


def _check(name: str, value: Any, low: int, high: int) -> None:
    rules.whole(low, high)(f"simulate({name}=…)", value)


def _hosts(hosts: Any) -> tuple[int, int]:
    pair = (hosts, hosts) if isinstance(hosts, int) else hosts
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigurationError(f"simulate(hosts=…) must be a number or (minimum, maximum); got {shown(hosts)}.")
    for value in pair:
        _check("hosts", value, 1, MAX_HOSTS)
    least, most = pair
    if least > most:
        raise ConfigurationError(f"simulate(hosts=…): the minimum, {least}, is above the maximum, {most}.")
    return least, most


def _prices(prices: Any) -> tuple[float, float]:
    if not isinstance(prices, tuple | list) or len(prices) != 2:
        raise rules.refuse("simulate(prices=…)", "(spot, on demand), in dollars per host and hour", prices)
    accept = rules.number(0, _MOST_DOLLARS, "(spot, on demand), in dollars per host and hour, each")
    spot, kept = (float(accept("simulate(prices=…)", price)) for price in prices)
    return spot, kept


def _records(job: Result | Workload, records: Any, epochs: Any) -> float:
    for name, value in (("records", records), ("epochs", epochs)):
        if value is not None:
            rules.above_0("a finite number above 0", sys.float_info.max)(f"simulate({name}=…)", value)
    if records is not None:
        if epochs is not None:
            raise ConfigurationError("simulate() takes records= or epochs=, not both.")
        return float(records)
    if not isinstance(job, Result) or not job.steps or not job.global_batch_size:
        raise ConfigurationError(
            "simulate() needs records=, the total number of records in all epochs. The given result or workload does "
            "not contain the steps and the batch size."
        )
    done = float(job.steps * job.global_batch_size)
    if epochs is None:
        return done
    had = job.hyperparameters.get("epochs")
    if isinstance(had, bool) or not isinstance(had, int | float) or not 0 < had <= sys.float_info.max:
        raise ConfigurationError(
            f"simulate(epochs=…): the job {job.job_name!r} has no hyperparameter 'epochs'. Give records=."
        )
    return done / float(had) * float(epochs)


def _rates(
    job: Result | Workload, most: int, per_host: int, constants: Constants, gbps: float | None
) -> tuple[float, ...]:
    """Return the training speeds with 1, 2, … hosts, in records per second.

    The cost model predicts the speeds. If the job is a result, the predictions are multiplied by a factor, so that they
    agree with the measured speed. If the result lacks values that the cost model needs, the speed is assumed to be
    proportional to the number of workers.
    """
    counts = range(per_host, most * per_host + 1, per_host)
    if gbps is not None:
        rules.above_0("a finite number above 0", sys.float_info.max)("simulate(bandwidth_gbps=…)", gbps)
    link = Hardware(hosts=1) if gbps is None else Hardware(hosts=1, bandwidth=gbps * 1e9 / 8)
    if isinstance(job, Result):
        measured, size = job.samples_per_second, job.processes
        if not measured or not size:
            raise ConfigurationError(
                f"the result of {job.job_name!r} has no samples per second. Train with cluster.callbacks(), or give "
                "a workload: simulate(Workload(compute_s=…, gradient_bytes=…, batch_size=…), …)."
            )
        own_s = calibrations.own_s(job)
        if job.model is None or not own_s:
            return tuple(measured * count / size for count in counts)
        workload = Workload(
            compute_s=own_s,
            gradient_bytes=job.model.gradient_bytes,
            largest_bytes=job.model.largest_bytes,
            tensors=max(1, job.model.tensors),
            batch_size=max(1, (job.global_batch_size or size) // size),
        )
        scale = measured / _modelled(workload, size, job.processes_per_host, constants, link)
    elif isinstance(job, Workload):
        workload, scale = job, 1.0
    else:
        raise ConfigurationError(f"simulate() takes the result of a job or a Workload; got {shown(job)}.")
    return tuple(scale * _modelled(workload, count, per_host, constants, link) for count in counts)


def _modelled(workload: Workload, workers: int, per_host: int, constants: Constants, link: Hardware) -> float:
    hosts = math.ceil(workers / per_host)
    fleet = dataclasses.replace(link, hosts=hosts, processes_per_host=min(per_host, workers))
    rate = predict("mpi", workload, fleet, constants).samples_per_second
    return rate * workers / fleet.size


def _every(commit_every: Any, cost_s: float, market: SpotMarket, threatened: int) -> float:
    if commit_every == "auto":
        if not market.rate or not threatened:
            return _QUIET_S
        between_s = _HOUR / (market.rate * threatened)
        return min(_AUTO_S[1], max(_AUTO_S[0], math.sqrt(2.0 * cost_s * between_s)))
    what = f"a number of seconds above 0 and at most {MAX_SECONDS:,}, or 'auto'"
    return float(rules.above_0(what, MAX_SECONDS)("simulate(commit_every=…)", commit_every))
