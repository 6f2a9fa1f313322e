"""What this machine or fleet is like, from measured steps: fits the cost model's constants, and says how well it fits.

A step takes a process's own computing and the exchange of gradients. Over models of different sizes the exchange is a
line: fixed costs, and seconds per byte on a link. It is fitted at two or more numbers of processes, and lies between
two of them for a number between. Where the hosts share one machine, its processors slow both parts down; that is
measured with each number of processes, in the computing by itself and in the exchange by itself, and not assumed once
more. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract.names import unknown
from container.system.files import write_json
from estimators.job.errors import ConfigurationError, RecordError
from estimators.records.record import jobs_folder
from estimators.results.result import Result

#: Strategies that are calibrated.
STRATEGIES = ("mpi", "collective_all_reduce", "parameter_server")
_SERVERS = "parameter_server"
_FILE = "calibration.json"
#: Without a difference in sizes there is no slope; then this many bytes per second are assumed.
_FAST = 1e11
#: Processes that compute this much longer than one alone contend for processors.
_CONTENDS = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
    """A measured step.

    Attributes:
        strategy: Its name. It does not matter with one process, which exchanges nothing.
        processes: How many processes compute (workers, with parameter servers).
        gradient_bytes: All gradients.
        step_s: One step, in seconds; with parameter servers, of a worker.
        own_s: Of it, what a process does not wait for gradients; None where that is not known.
    """

    strategy: str
    processes: int
    gradient_bytes: float
    step_s: float
    own_s: float | None = None

    @property
    def is_alone(self) -> bool:
        """Whether it tells what one process computes, and nothing else."""
        return self.processes == 1 and self.strategy != _SERVERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a step costs under one strategy beside a process's own computing: ``fixed_s + bytes ÷ bandwidth``.

    Attributes:
        fixed_s: Seconds per step, however small the model is.
        bandwidth: Bytes per second on a process's link.
        contention: By how much computing takes longer than in one process alone; 1 where each has its own machine.
    """

    fixed_s: float
    bandwidth: float
    contention: float = 1.0

    def seconds(self, count: float) -> float:
        """Seconds for so many bytes."""
        return self.fixed_s + count / self.bandwidth


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """What was measured with one number of processes.

    Attributes:
        processes: How many.
        lines: Strategy -> what a step costs.
    """

    processes: int
    lines: Mapping[str, StepCost]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured.

    Attributes:
        instance_type: Where.
        points: With each number of processes, ascending.
        cores: The processors that all processes share, where hosts are on one machine; None where each has its own.
        error: How far off it was, as a factor less 1, for runs that it was not fitted to; None if there were none.
    """

    instance_type: str
    points: tuple[MeasuredSize, ...]
    cores: int | None = None
    error: float | None = None

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those that were calibrated."""
        return tuple(name for name in STRATEGIES if any(name in point.lines for point in self.points))

    def compute_s(self, strategy: str, alone_s: float, processes: int) -> float:
        """Return what a process's own part takes when so many share the machine.

        Args:
            strategy: Which: a process that waits may spin, and take the time of those that compute.
            alone_s: What it takes alone.
            processes: How many processes.

        Raises:
            ConfigurationError: the strategy was not calibrated.
        """
        known = [(1, 1.0), *((count, line.contention) for count, line in self._lines(strategy))]
        if self.cores is None or processes <= 1:
            return alone_s
        count, last = known[-1]
        if processes <= count:
            return alone_s * _between(known, processes)
        # Processors that were not all taken may have been enough for more.
        return alone_s * max(last, last * processes / count if last > _CONTENDS else processes / self.cores)

    def _lines(self, strategy: str) -> list[tuple[int, StepCost]]:
        """Numbers of processes, ascending, and what was measured with each."""
        found = [(point.processes, point.lines[strategy]) for point in self.points if strategy in point.lines]
        if not found:
            raise ConfigurationError(unknown("calibrated strategy", strategy, self.strategies))
        return found

    def exchange_s(self, strategy: str, *, gradient_bytes: float, processes: int) -> float:
        """Return what exchanging gradients adds to a step.

        Args:
            strategy: Which.
            gradient_bytes: All gradients.
            processes: How many processes (workers, with parameter servers).

        Raises:
            ConfigurationError: the strategy was not calibrated.
        """
        if processes == 1 and strategy != _SERVERS:
            return 0.0
        lines = self._lines(strategy)
        fixed = [(count, line.fixed_s) for count, line in lines]
        per_byte = [(count, 1.0 / line.bandwidth) for count, line in lines]
        fixed_s, seconds = self._at(fixed, processes, grows=True), self._at(per_byte, processes, grows=False)
        return fixed_s + seconds * _moved(strategy, gradient_bytes, processes)

    def _at(self, known: Sequence[tuple[int, float]], processes: int, *, grows: bool) -> float:
        """Return a cost with a number of processes, from those with others.

        Args:
            known: Numbers of processes, ascending, and the cost with each.
            processes: The number.
            grows: Whether it grows with the processes also where each has a machine of its own, as a ring's messages
                do and the time of a byte does not.
        """
        (first, first_cost), (last, last_cost) = known[0], known[-1]
        if processes <= first:
            return first_cost
        if processes <= last:
            return _between(known, processes)
        if self.cores is None and not grows:
            return last_cost
        if len(known) == 1:
            # All work shares the processors, once they are all taken.
            return last_cost if self.cores is None else last_cost * max(1.0, processes / max(last, self.cores))
        before, cost = known[-2]
        return last_cost + max(0.0, last_cost - cost) * (processes - last) / (last - before)

    def step_s(self, strategy: str, *, alone_s: float, gradient_bytes: float, processes: int) -> float:
        """Return the step that is to be expected.

        Args:
            strategy: Which.
            alone_s: A process's own part of a step when it is alone.
            gradient_bytes: All gradients.
            processes: How many processes (workers, with parameter servers).

        Raises:
            ConfigurationError: the strategy was not calibrated.
        """
        return self.compute_s(strategy, alone_s, processes) + self.exchange_s(
            strategy, gradient_bytes=gradient_bytes, processes=processes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Read what :meth:`to_dict` gave.

        Raises:
            RecordError: it is something else, or an older version's.
        """
        try:
            points = tuple(
                MeasuredSize(
                    **{**point, "lines": {str(name): StepCost(**line) for name, line in point["lines"].items()}}
                )
                for point in values["points"]
            )
            return cls(**{**values, "points": points})
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"the calibration was made by another version of fleetfit: {error}. Run `fleetfit calibrate` again."
            ) from error

    def save(self, home: str | Path | None = None) -> Path:
        """Keep it, for :func:`load`."""
        file = jobs_folder(home).parent / _FILE
        known = _read(file)
        known[self.instance_type] = self.to_dict()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, known)
        return file


def _between(known: Sequence[tuple[int, float]], processes: int) -> float:
    """The value for a number of processes within those that are known, on the straight line between its neighbours."""
    for (low, low_value), (high, high_value) in itertools.pairwise(known):
        if low <= processes <= high:
            return low_value + (high_value - low_value) * (processes - low) / (high - low)
    return known[-1][1]


def load(instance_type: str, home: str | Path | None = None) -> Calibration | None:
    """Return the calibration of an instance type; None where there has been none.

    Raises:
        RecordError: the file cannot be read.
    """
    values = _read(jobs_folder(home).parent / _FILE).get(instance_type)
    return Calibration.from_dict(values) if values is not None else None


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RecordError(f"{file} cannot be read: {error}. Remove it, then run `fleetfit calibrate`.") from error
    return found if isinstance(found, dict) else {}


def _moved(strategy: str, gradient_bytes: float, processes: int) -> float:
    """Return the bytes that a process's link carries for a step.

    A ring sends 2(N−1)/N of the gradients; a worker of parameter servers reads all weights and sends all gradients.
    """
    return 2.0 * gradient_bytes * (1.0 if strategy == _SERVERS else (processes - 1) / processes)


def fit(observations: Iterable[Observation], *, instance_type: str, cores: int | None) -> Calibration:
    """Fit a calibration to measured steps.

    Args:
        observations: Steps of models of at least two sizes, of each also with one process.
        instance_type: Where they were measured.
        cores: The processors that the hosts share; None where each has its own.

    Raises:
        ConfigurationError: they do not tell enough.
    """
    steps = list(observations)
    alone = _alone(steps)
    if not alone:
        raise ConfigurationError(
            "a calibration needs a completed run of one process, and the run must report its steps."
        )
    together = [one for one in steps if one.processes > 1 and one.gradient_bytes in alone]
    if not together:
        raise ConfigurationError("a calibration needs completed runs of several processes.")
    points: list[MeasuredSize] = []
    for processes in sorted({one.processes for one in together}):
        here = [one for one in together if one.processes == processes]
        lines = {}
        for strategy, mine in _contentions(here, alone, cores).items():
            steps_here = [one for one in here if one.strategy == strategy]
            line = line_through(
                [
                    (
                        _moved(strategy, one.gradient_bytes, processes),
                        max(0.0, one.step_s - mine * alone[one.gradient_bytes]),
                    )
                    for one in steps_here
                ],
                weights=[1.0 / one.step_s**2 for one in steps_here],
            )
            lines[strategy] = dataclasses.replace(line, contention=mine)
        points.append(MeasuredSize(processes=processes, lines=lines))
    return Calibration(instance_type=instance_type, points=tuple(points), cores=cores)


def _alone(observations: Iterable[Observation]) -> dict[float, float]:
    """Bytes of gradients -> the step of one process alone: the median, where there are several."""
    found: dict[float, list[float]] = {}
    for one in observations:
        if one.is_alone:
            found.setdefault(one.gradient_bytes, []).append(one.step_s)
    return {size: statistics.median(seconds) for size, seconds in found.items()}


def _contentions(here: Sequence[Observation], alone: Mapping[float, float], cores: int | None) -> dict[str, float]:
    """Strategy -> by how much computing takes longer with so many processes as in ``here`` than in one alone.

    It is what they did themselves ÷ what one does alone, in sums, so that large models weigh most: what a step of a
    small one does is mostly not computing. Where a strategy does not tell that, as parameter servers do not, it is the
    least of the others'; where nothing does, each process is taken to keep one processor busy. It is never so much that
    computing alone would take longer than a step.
    """
    found: dict[str, float] = {}
    strategies = [name for name in STRATEGIES if any(one.strategy == name for one in here)]
    if cores is None:
        return dict.fromkeys(strategies, 1.0)
    for strategy in strategies:
        own = [(one.own_s, alone[one.gradient_bytes]) for one in here if one.strategy == strategy and one.own_s]
        if own and strategy != _SERVERS:
            found[strategy] = max(1.0, sum(mine for mine, _ in own) / sum(single for _, single in own))
    usual = min(found.values(), default=max(1.0, here[0].processes / cores))
    for strategy in strategies:
        most = min(one.step_s / alone[one.gradient_bytes] for one in here if one.strategy == strategy)
        found[strategy] = max(1.0, min(found.get(strategy, usual), most))
    return found


def own_s(run: Result) -> float | None:
    """A process's own part of a step of a run: the median over its ranks. One process alone has no other part."""
    if run.processes == 1:
        return run.step_times.quantile(0.5)
    known = [rank.own_s if rank.own_s is not None else rank.steps.quantile(0.5) for rank in run.ranks]
    found = [seconds for seconds in known if seconds]
    return statistics.median(found) if found else None


def line_through(points: Sequence[tuple[float, float]], weights: Sequence[float] | None = None) -> StepCost:
    """Return the line ``fixed_s + bytes ÷ bandwidth`` nearest to points, with no negative part.

    Args:
        points: Bytes and seconds.
        weights: Of the points' squared distances; default: such that relative distances count.
    """
    if weights is None:
        weights = [1.0 / max(seconds, 1e-4) ** 2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points, strict=True))
    if spread <= 1e-12 * max(1.0, mean_x**2) * total:
        return StepCost(fixed_s=mean_y, bandwidth=_FAST)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    if slope <= 1.0 / _FAST:  # all of it is fixed
        return StepCost(fixed_s=mean_y, bandwidth=_FAST)
    fixed_s = mean_y - slope * mean_x
    if fixed_s < 0:  # all of it is per byte
        fixed_s = 0.0
        square = sum(weight * x * x for weight, (x, _) in zip(weights, points, strict=True))
        slope = sum(weight * x * y for weight, (x, y) in zip(weights, points, strict=True)) / square
    return StepCost(fixed_s=fixed_s, bandwidth=1.0 / max(slope, 1.0 / _FAST))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A measured step held against the calibration.

    Attributes:
        name: What was measured.
        measured_s: Its step.
        predicted_s: The step that was to be expected.
    """

    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """How far off, relative to what was measured."""
        return self.predicted_s / self.measured_s - 1.0

    def __str__(self) -> str:
        return (
            f"{self.name}: measured {self.measured_s * 1e3:.1f} ms, predicted {self.predicted_s * 1e3:.1f} ms "
            f"({self.error:+.0%})"
        )


def check(calibration: Calibration, observations: Iterable[Observation]) -> list[Check]:
    """Hold measured steps against a calibration.

    Args:
        calibration: The calibration.
        observations: The steps; those of one process tell the computing of the others.
    """
    steps = list(observations)
    alone = _alone(steps)
    found = []
    for one in steps:
        if one.processes < 2 or one.strategy not in calibration.strategies or one.gradient_bytes not in alone:
            continue
        predicted = calibration.step_s(
            one.strategy, alone_s=alone[one.gradient_bytes], gradient_bytes=one.gradient_bytes, processes=one.processes
        )
        name = f"{one.strategy}, {one.processes} processes, {one.gradient_bytes / 1e6:.3g} MB"
        found.append(Check(name=name, measured_s=one.step_s, predicted_s=predicted))
    return found


def mean_error(checks: Sequence[Check]) -> float | None:
    """Return the mean of the errors' magnitudes, as factors: 0.2 is a factor of 1.2, one way or the other."""
    if not checks:
        return None
    return math.exp(statistics.mean(abs(math.log(one.predicted_s / one.measured_s)) for one in checks)) - 1.0
