"""simulate() held against real jobs that lose hosts: time, training done again, resizes and goodput of 20 of each kind.

The jobs are real, on processes of this machine: elastic ones (Horovod), and scripts that restart from what they saved.
Their steps are nearly all sleep: so they scale as on machines of their own, and mind less what else runs. What a start,
a resize, a loss and a step take is measured in jobs with other seeds, never in those that are forecast. Who is taken
when is a function of the seed; all that follows from it is the simulation's.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from estimators import ElasticHorovod, FailurePolicy, PreflightWarning, RunOptions, TensorFlow, TrainingJob
from estimators.client.simulation.forecast import Forecast
from estimators.faults import SpotMarket
from estimators.job.spot_market import interruptions
from estimators.planning import Timings, Workload, simulate

_SCRIPTS = harness.HERE / "scripts"
_JOBS = 20
_HOSTS = 3
#: Seconds that a step sleeps; the steps of all hosts; steps between commits or saves; records of a worker's step.
_STEP_S, _STEPS, _EVERY, _BATCH = 0.2, 160, 10, 8
_TIMEOUT = 400.0
#: Interruptions of each host in an hour, and how long it stays away: some three in a job.
_RATE, _BACK_S = 100.0, 6.0
#: Every second market gives no notice.
_NOTICES = (0.0, 4.0)
#: The seeds of the jobs that tell how long things take begin with this one; one of them runs among so many others.
_CALIBRATING, _AMONG = 1000, 4
#: Jobs that run at the same time: elastic ones import TensorFlow, the others sleep.
_ELASTIC_AT_ONCE, _GANGS_AT_ONCE = 3, 5
_WHAT = {
    "seconds": ("time", "s"),
    "lost_s": ("training done again", "s"),
    "resizes": ("resizes, or restarts", ""),
    "goodput": ("goodput", ""),
}
_BAR = Bar(limit=0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the first worker.

    Attributes:
        at_s: When it ended, in seconds since the job's hosts were started.
        size: Of how many workers.
        number: The training's steps so far; 0 where it is not known.
    """

    at_s: float
    size: int
    number: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a job came to.

    Attributes:
        seconds: From the start of its hosts to the end of its training.
        lost_s: Training that was done again.
        resizes: Memberships, or attempts, after the first.
        steps: The first worker's, in their order.
        joins: Of each host that came back, the seconds from then to its toolkit, and from there to its worker; of
            attempts, from the last host's return to their beginning.
    """

    seconds: float
    lost_s: float
    resizes: int
    steps: tuple[Step, ...]
    joins: tuple[tuple[float, float], ...] = ()

    def numbers(self, step_s: float) -> dict[str, float]:
        """Return what is compared; a step takes so long."""
        undisturbed = _STEPS * step_s
        return {
            "seconds": self.seconds,
            "lost_s": self.lost_s,
            "resizes": float(self.resizes),
            "goodput": undisturbed / self.seconds,
        }


def market(seed: int, threatened: Sequence[str]) -> SpotMarket:
    """Return the market of a job, which threatens these hosts alone; the moments are those of its seed."""
    drawn = SpotMarket(rate=_RATE, notice_s=_NOTICES[seed % 2], return_after_s=_BACK_S, seed=seed)
    moments = itertools.takewhile(lambda item: item.at_s < _TIMEOUT, interruptions(drawn, threatened))
    return dataclasses.replace(drawn, rate=0.0, trace=tuple((item.at_s, item.host) for item in moments))


def elastic_market(seed: int) -> SpotMarket:
    """All but the first host: where none is left, there is another attempt, which is what the other jobs are about."""
    return market(seed, [f"algo-{number}" for number in range(2, _HOSTS + 1)])


def gang_market(seed: int) -> SpotMarket:
    """All hosts."""
    return market(seed, [f"algo-{number}" for number in range(1, _HOSTS + 1)])


def _start(script: str, folder: Path, one: SpotMarket, **options: Any) -> TrainingJob:
    estimator = TensorFlow(
        entry_point=script,
        source_dir=str(_SCRIPTS),
        instance_type="local_process",
        instance_count=_HOSTS,
        model_dir=False,
        use_spot_instances=True,
        max_run=int(_TIMEOUT),
        max_wait=2 * int(_TIMEOUT),
        environment={
            "FORECAST_FOLDER": str(folder),
            "FORECAST_STEP_S": str(_STEP_S),
            "FORECAST_STEPS": str(_STEPS),
            "FORECAST_RECORDS": str(_STEPS * _HOSTS * _BATCH),
            "FORECAST_BATCH": str(_BATCH),
            "FORECAST_HOSTS": str(_HOSTS),
            "FORECAST_COMMIT_STEPS": str(_EVERY),
            "FORECAST_SAVES": str(int(one.notice_s > 0)),
        },
        run_options=RunOptions(spot_market=one, failure_policy=FailurePolicy(max_failures=0)),
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        return estimator.fit(wait=False)


def _finish(job: TrainingJob) -> tuple[int, list[Any]]:
    """Wait for its end; when its hosts were started, with which its market begins, in ns, and its events."""
    job.wait(logs=False, timeout=_TIMEOUT)
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    changes = job.describe()["SecondaryStatusTransitions"]
    began = next(change["StartTime"] for change in changes if change["Status"] == "Training")
    return int(began * 1e9), list(job.record.events())


def _lines(folder: Path, name: str) -> list[list[str]]:
    found = [line.split() for path in folder.glob(name) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda words: int(words[0]))


def elastic_runs(seeds: Sequence[int]) -> Iterator[Run]:
    """Run elastic jobs, some at a time."""
    for some in _chunks(seeds, _ELASTIC_AT_ONCE):
        with tempfile.TemporaryDirectory() as name:
            started = []
            for seed in some:
                folder = Path(name, str(seed))
                folder.mkdir()
                strategy = ElasticHorovod(min_hosts=1, max_hosts=_HOSTS, cooldown=(_TIMEOUT, _TIMEOUT))
                job = _start("forecast_elastic.py", folder, elastic_market(seed), distribution=strategy)
                started.append((folder, job))
            for folder, job in started:
                yield elastic_run(*_finish(job), _lines(folder, "steps-*"))


def elastic_run(began: int, events: Sequence[Any], lines: Sequence[Sequence[str]]) -> Run:
    """Return what its events and the lines of its first worker say. Pure."""
    ended = next(event.time_ns for event in events if event.data.get("name") == "elastic_finished")
    lost: dict[int, int] = {}  # all workers tell of the same
    for event in events:
        if event.kind == "restored":
            step = event.data["step"]
            lost[step] = max(lost.get(step, 0), event.data["steps_lost"])
    joins = []
    for event in events:
        if event.kind == "returned":
            name = event.data["target"]
            up = [e.time_ns for e in events if e.kind == "host_ready" and e.host == name]
            ready = [e.time_ns for e in events if e.kind == "worker_ready" and e.host == name]
            if up and ready:
                joins.append(((up[0] - event.time_ns) / 1e9, (ready[0] - up[0]) / 1e9))
    return Run(
        seconds=(ended - began) / 1e9,
        lost_s=sum(lost.values()) * _STEP_S,
        resizes=sum(event.kind == "resized" for event in events) - 1,
        steps=tuple(Step(at_s=(int(words[0]) - began) / 1e9, size=int(words[1])) for words in lines),
        joins=tuple(joins),
    )


def gang_runs(seeds: Sequence[int]) -> Iterator[Run]:
    """Run scripts that restart, some at a time."""
    for some in _chunks(seeds, _GANGS_AT_ONCE):
        with tempfile.TemporaryDirectory() as name:
            started = []
            for seed in some:
                folder = Path(name, str(seed))
                folder.mkdir()
                started.append((folder, _start("forecast_gang.py", folder, gang_market(seed))))
            for folder, job in started:
                yield gang_run(*_finish(job), _lines(folder, "steps-algo-1-*"))


def gang_run(began: int, events: Sequence[Any], lines: Sequence[Sequence[str]]) -> Run:
    """Return what its events and the lines of its first host say. Pure."""
    reached, lost, steps, joins = 0, 0, [], []
    returns = [event.time_ns for event in events if event.kind == "returned"]
    for time_ns, kind, number in lines:
        if kind == "begin":
            lost += reached - int(number)
            joins += [((int(time_ns) - back) / 1e9, 0.0) for back in returns if back < int(time_ns)][-1:]
        reached = int(number)
        steps.append(Step(at_s=(int(time_ns) - began) / 1e9, size=_HOSTS, number=reached if kind == "step" else 0))
    return Run(
        seconds=steps[-1].at_s,
        lost_s=lost * _STEP_S,
        resizes=sum(event.kind == "restart" for event in events),
        steps=tuple(steps),
        joins=tuple(joins),
    )


def _chunks(seeds: Sequence[int], size: int) -> list[Sequence[int]]:
    return [seeds[begin : begin + size] for begin in range(0, len(seeds), size)]


# --- what is measured, and what is forecast ---


def interleaved(seeds: Sequence[int]) -> list[int]:
    """Return the seeds of all jobs in their order: those that tell how long things take are among the others. Pure."""
    found: list[int] = []
    for number, some in enumerate(_chunks(seeds, _AMONG)):
        found += [*some, _CALIBRATING + number]
    return found


def _median(values: Sequence[float], otherwise: float) -> float:
    """A host may be taken before its first step: what is there then is another attempt's."""
    return statistics.median(values) if values else otherwise


def step_seconds(runs: Sequence[Run]) -> float:
    """The median of a step, of all runs and sizes."""
    return statistics.median(
        after.at_s - before.at_s
        for run in runs
        for before, after in itertools.pairwise(run.steps)
        if before.size == after.size and (after.number > 1) == (before.number > 0) and after.at_s - before.at_s < 1.0
    )


def elastic_timings(runs: Sequence[tuple[int, Run]], step_s: float) -> Timings:
    """Return how long things took in elastic jobs, given with their seeds. Pure."""
    gaps: dict[str, list[float]] = {"resize": [], "loss": []}
    for seed, run in runs:
        for before, after in itertools.pairwise(run.steps):
            if before.size != after.size:
                kills = after.size < before.size and not _NOTICES[seed % 2]
                gaps["loss" if kills else "resize"].append(max(0.0, after.at_s - before.at_s - step_s))
    joins = [join for _, run in runs for join in run.joins]
    start_s, import_s = (_median([join[part] for join in joins], 0.5) for part in (0, 1))
    first = statistics.median(run.steps[0].at_s for _, run in runs) - step_s
    return Timings(
        start_s=start_s,
        import_s=import_s,
        rendezvous_s=max(0.0, first - start_s - import_s),
        look_s=step_s,
        resize_s=_median(gaps["resize"], 0.5),
        loss_s=_median(gaps["loss"], 0.5),
        commit_s=0.0,
    )


def gang_timings(runs: Sequence[tuple[int, Run]], step_s: float) -> Timings:
    """Return how long things took in jobs that restart, given with their seeds. Pure."""
    first = statistics.median(run.steps[0].at_s for _, run in runs)
    restart_s = _median([seconds for _, run in runs for seconds, _ in run.joins], first)
    # What a save takes is in a step's time.
    return Timings(start_s=first, import_s=0.0, checkpoint_s=0.001, restart_s=restart_s)


def forecast(one: SpotMarket, step_s: float, timings: Timings, *, is_elastic: bool) -> Forecast:
    """Simulate a job."""
    return simulate(
        Workload(compute_s=step_s, gradient_bytes=8.0, batch_size=_BATCH),
        hosts=(1, _HOSTS) if is_elastic else _HOSTS,
        records=_STEPS * _HOSTS * _BATCH,
        market=one,
        commit_every=_EVERY * step_s,
        timings=timings,
        runs=1,
    )


def _forecast_numbers(found: Forecast) -> dict[str, float]:
    run = found.runs[0]
    return {
        "seconds": run.seconds,
        "lost_s": run.lost_s,
        "resizes": float(run.resizes),
        "goodput": found.goodput.mean,
    }


def deviation(real: Sequence[float], expected: Sequence[float]) -> float:
    """Return how far the mean of what was forecast is from that of what was; 0 where both are."""
    mean, other = statistics.fmean(real), statistics.fmean(expected)
    return abs(other - mean) / mean if mean else other


def rows_of(kind: str, real: Sequence[Numbers], expected: Sequence[Numbers]) -> list[Row]:
    """The lines of the table. Pure."""
    rows = []
    for key, (what, unit) in _WHAT.items():
        mine, theirs = [one[key] for one in real], [one[key] for one in expected]
        off = deviation(mine, theirs)
        estimate = dataclasses.replace(median_with_interval([off]), count=len(real))
        means = {"real": statistics.fmean(mine), "simulated": statistics.fmean(theirs)}
        beside = {f"{name}{', ' + unit if unit else ''}": value for name, value in means.items()}
        name = f"{kind}: {what}, deviation of the mean"
        rows.append(Row(what=name, estimate=estimate, unit="", bar=_BAR, beside=beside))
    return rows


def run(options: argparse.Namespace) -> None:
    """Run elastic jobs, simulate them, and record both."""
    _measure("forecast", "elastic", options)


def run_restarts(options: argparse.Namespace) -> None:
    """Run jobs that restart, simulate them, and record both."""
    _measure("forecast-restarts", "restarts", options)


def _measure(name: str, kind: str, options: argparse.Namespace) -> None:
    is_elastic = kind == "elastic"
    runs, its_market = (elastic_runs, elastic_market) if is_elastic else (gang_runs, gang_market)
    seeds = range(options.alternations or _JOBS)
    quiet = Quiet(options.patience)
    with harness.own_home():
        order = interleaved(seeds)
        found = []
        for seed, one in zip(order, runs(order), strict=True):
            found.append((seed, one))
            print(f"  {kind} {seed}: {one.seconds:.1f} s, {one.resizes}", file=sys.stderr, flush=True)
    calibrating = [(seed, one) for seed, one in found if seed >= _CALIBRATING]
    step_s = step_seconds([one for _, one in calibrating])
    timings = (elastic_timings if is_elastic else gang_timings)(calibrating, step_s)
    real = [one.numbers(step_s) for seed, one in found if seed < _CALIBRATING]
    expected = [_forecast_numbers(forecast(its_market(seed), step_s, timings, is_elastic=is_elastic)) for seed in seeds]
    samples = {
        "step_s": step_s,
        "timings": dataclasses.asdict(timings),
        "real": real,
        "simulated": expected,
        "first_steps": [one.steps[0].at_s for _, one in calibrating],
        "joins": [one.joins for _, one in calibrating],
    }
    harness.record(name, rows_of(kind, real, expected), samples, quiet, dry=options.dry)
