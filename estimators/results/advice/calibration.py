"""Fit the costs of a training step to steps that were measured on one instance type, and report how well the fitted
costs predict measured steps.

A step consists of a process's computing and the exchange of gradients. For a given number of processes, the time of the
exchange is a linear function of the model's size: fixed costs, plus seconds for each byte on a link. The function is
fitted for each measured number of processes. For numbers between the measured ones, the costs are interpolated. If the
hosts share one machine, the processes compete for its processors, so that computing and exchange become slower. The
measurements for each number of processes already contain this slowdown. Therefore the function has no additional term
for the slowdown. Apart from saving and loading, the module is pure.
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

from container.contract.frozen import dataclass
from container.contract.names import unknown
from container.system.files import write_json
from estimators.job.errors import ConfigurationError, RecordError
from estimators.records.record import jobs_folder
from estimators.results.result import Result

#: The strategies that are calibrated.
STRATEGIES = ("mpi", "collective_all_reduce", "parameter_server")
_SERVERS = "parameter_server"
_FILE = "calibration.json"
#: The bandwidth that is assumed if the sizes of the models do not differ, in bytes per second.
_FAST = 1e11
#: Processes are assumed to compete for processors if their computing takes more than this factor times the computing of
#: a single process.
_CONTENDS = 1.1


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A measured step.

    Attributes:
        strategy: The strategy's name. For a single process, only ``parameter_server`` makes a difference. With any
            other strategy, a single process exchanges nothing.
        processes: The number of processes that compute. With parameter servers, the number of workers.
        gradient_bytes: The size of all gradients, in bytes.
        step_s: The time of a step, in seconds. With parameter servers, the time of a worker's step.
        own_s: The part of ``step_s`` in which a process does not wait for gradients, in seconds. None if the part is
            unknown.
    """

    strategy: str
    processes: int
    gradient_bytes: float
    step_s: float
    own_s: float | None = None

    @property
    def is_alone(self) -> bool:
        """Return whether a single process made the step, without parameter servers. Such a step consists only of
        computing.
        """
        return self.processes == 1 and self.strategy != _SERVERS


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The time that a strategy adds to a process's computing in a step: ``fixed_s + bytes ÷ bandwidth``.

    Attributes:
        fixed_s: The part of the cost that does not depend on the model's size, in seconds.
        bandwidth: The bandwidth of a process's link, in bytes per second.
        contention: The time of computing, divided by the time of the same computing in a single process. The ratio is 1
            if each host has a machine of its own.
    """

    fixed_s: float
    bandwidth: float
    contention: float = 1.0

    def seconds(self, count: float) -> float:
        """Return the cost in seconds for ``count`` bytes."""
        return self.fixed_s + count / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """The measured costs for one number of processes.

    Attributes:
        processes: The number of processes.
        lines: The cost of a step, by the strategy's name.
    """

    processes: int
    lines: Mapping[str, StepCost]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measured constants of an instance type.

    Attributes:
        instance_type: The instance type on which the steps were measured.
        points: The measured costs for each number of processes, in ascending order of the numbers.
        cores: If the hosts are on one machine, the number of processors that all processes share. None if each host has
            a machine of its own.
        error: The mean relative error of the predictions for runs that were not used for the fit. 0.1 means 10 %. None
            if there are no such runs.
    """

    instance_type: str
    points: tuple[MeasuredSize, ...]
    cores: int | None = None
    error: float | None = None

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the names of the calibrated strategies."""
        return tuple(name for name in STRATEGIES if any(name in point.lines for point in self.points))

    def compute_s(self, strategy: str, alone_s: float, processes: int) -> float:
        """Return the seconds that a process computes in a step while ``processes`` processes run.

        Args:
            strategy: The strategy's name. The strategy matters because waiting processes may use processor time that
                computing processes need.
            alone_s: The seconds of the same computation in a single process.
            processes: The number of processes.

        Raises:
            ConfigurationError: the strategy was not calibrated.
        """
        known = [(1, 1.0), *((count, line.contention) for count, line in self._lines(strategy))]
        if self.cores is None or processes <= 1:
            return alone_s
        count, last = known[-1]
        if processes <= count:
            return alone_s * _between(known, processes)
        # More processes than measured: if processors were idle during the measurement, they may suffice for these
        # processes.
        return alone_s * max(last, last * processes / count if last > _CONTENDS else processes / self.cores)

    def _lines(self, strategy: str) -> list[tuple[int, StepCost]]:
        """Return the measured costs of a step under a strategy, each with its number of processes, in
        ascending order.
        """
        found = [(point.processes, point.lines[strategy]) for point in self.points if strategy in point.lines]
        if not found:
            raise ConfigurationError(unknown("calibrated strategy", strategy, self.strategies))
        return found

    def exchange_s(self, strategy: str, *, gradient_bytes: float, processes: int) -> float:
        """Return the seconds that the exchange of gradients adds to a step.

        Args:
            strategy: The strategy's name.
            gradient_bytes: The size of all gradients, in bytes.
            processes: The number of processes. With parameter servers, the number of workers.

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
        """Return the cost for a number of processes, by interpolation or extrapolation from the measured numbers.

        Args:
            known: The measured numbers of processes, ascending, and the cost for each number.
            processes: The number of processes.
            grows: Whether the cost grows with the number of processes even if each host has a machine of its own. For
                example, the fixed costs grow with the number of a ring's messages, but the time for a byte does not
                grow.
        """
        (first, first_cost), (last, last_cost) = known[0], known[-1]
        if processes <= first:
            return first_cost
        if processes <= last:
            return _between(known, processes)
        if self.cores is None and not grows:
            return last_cost
        if len(known) == 1:
            # As soon as all processors are busy, additional processes must share them.
            return last_cost if self.cores is None else last_cost * max(1.0, processes / max(last, self.cores))
        before, cost = known[-2]
        return last_cost + max(0.0, last_cost - cost) * (processes - last) / (last - before)

    def step_s(self, strategy: str, *, alone_s: float, gradient_bytes: float, processes: int) -> float:
        """Return the predicted seconds of a step.

        Args:
            strategy: The strategy's name.
            alone_s: The seconds that a single process computes in a step.
            gradient_bytes: The size of all gradients, in bytes.
            processes: The number of processes. With parameter servers, the number of workers.

        Raises:
            ConfigurationError: the strategy was not calibrated.
        """
        return self.compute_s(strategy, alone_s, processes) + self.exchange_s(
            strategy, gradient_bytes=gradient_bytes, processes=processes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a JSON-serialisable dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Create a calibration from a dict that :meth:`to_dict` returned.

        Raises:
            RecordError: ``values`` is from another version of fleetfit, or is no calibration.
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
        """Save the calibration below ``$FLEETFIT_HOME``, from where :func:`load` reads it. Return the path of
        the file.
        """
        file = jobs_folder(home).parent / _FILE
        known = _read(file)
        known[self.instance_type] = self.to_dict()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, known)
        return file


def _between(known: Sequence[tuple[int, float]], processes: int) -> float:
    """Return the value for a number of processes, by linear interpolation between the values for the nearest measured
    numbers.
    """
    for (low, low_value), (high, high_value) in itertools.pairwise(known):
        if low <= processes <= high:
            return low_value + (high_value - low_value) * (processes - low) / (high - low)
    return known[-1][1]


def load(instance_type: str, home: str | Path | None = None) -> Calibration | None:
    """Return the saved calibration of an instance type. Return None if no calibration was saved.

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
    """Return how many bytes a process's link carries in a step.

    In a ring, a process sends 2(N−1)/N times the size of the gradients, where N is the number of processes. With
    parameter servers, a worker reads all weights and sends all gradients.
    """
    return 2.0 * gradient_bytes * (1.0 if strategy == _SERVERS else (processes - 1) / processes)


def fit(observations: Iterable[Observation], *, instance_type: str, cores: int | None) -> Calibration:
    """Fit a calibration to measured steps.

    Args:
        observations: The measured steps, ideally of models of several sizes. For each size, there should be a step of a
            single process. Without this step, the other steps of the same size are ignored.
        instance_type: The instance type on which the steps were measured.
        cores: The number of processors that the hosts share. None if each host has a machine of its own.

    Raises:
        ConfigurationError: there are no steps of a single process, or no usable steps of several processes.
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
    """Return the median time of a single process's step in seconds, by the size of the gradients in bytes."""
    found: dict[float, list[float]] = {}
    for one in observations:
        if one.is_alone:
            found.setdefault(one.gradient_bytes, []).append(one.step_s)
    return {size: statistics.median(seconds) for size, seconds in found.items()}


def _contentions(here: Sequence[Observation], alone: Mapping[float, float], cores: int | None) -> dict[str, float]:
    """Return, for each strategy, how many times longer computing takes in several processes than in a single process.

    If each host has a machine of its own, the factor is 1. Otherwise, the factor is the sum of the computing times in
    several processes, divided by the sum for a single process. Large models therefore have the largest weight. This is
    intended, because the step of a small model consists mostly of other costs. For a strategy without known computing
    times, such as parameter servers, the smallest factor of the other strategies is used. If no strategy has known
    times, each process is assumed to keep one processor busy. The factor is at least 1. It is limited so that computing
    alone never takes longer than a step.

    Args:
        here: The measured steps with the same number of processes.
        alone: The time of a single process's step in seconds, by the size of the gradients in bytes.
        cores: The number of processors that the hosts share. None if each host has a machine of its own.
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
    """Return for how many seconds a process computes in a step. The value is the median over the ranks.

    For a run of one process, return the time of the whole step. Return None if the times are unknown.
    """
    if run.processes == 1:
        return run.step_times.quantile(0.5)
    known = [rank.own_s if rank.own_s is not None else rank.steps.quantile(0.5) for rank in run.ranks]
    found = [seconds for seconds in known if seconds]
    return statistics.median(found) if found else None


def line_through(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> StepCost:
    """Return the line ``fixed_s + bytes ÷ bandwidth`` that best fits some points (least squares). No coefficient is
    negative.

    Args:
        points: The points, each as a number of bytes and a number of seconds.
        weights: The weights of the points' squared distances.
    """
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points, strict=True))
    if spread <= 1e-12 * max(1.0, mean_x**2) * total:
        return StepCost(fixed_s=mean_y, bandwidth=_FAST)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    if slope <= 1.0 / _FAST:  # the cost is entirely fixed
        return StepCost(fixed_s=mean_y, bandwidth=_FAST)
    fixed_s = mean_y - slope * mean_x
    if fixed_s < 0:  # the cost is entirely per byte
        fixed_s = 0.0
        square = sum(weight * x * x for weight, (x, _) in zip(weights, points, strict=True))
        slope = sum(weight * x * y for weight, (x, y) in zip(weights, points, strict=True)) / square
    return StepCost(fixed_s=fixed_s, bandwidth=1.0 / max(slope, 1.0 / _FAST))


@dataclass(frozen=True, kw_only=True)
class Check:
    """The comparison of a measured step with its prediction.

    Attributes:
        name: A description of the measured configuration.
        measured_s: The measured time of a step, in seconds.
        predicted_s: The predicted time of a step, in seconds.
    """

    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Return the relative error of the prediction.

        For example, 0.1 means that the predicted time is 10 % too long.
        """
        return self.predicted_s / self.measured_s - 1.0

    def __str__(self) -> str:
        return (
            f"{self.name}: measured {self.measured_s * 1e3:.1f} ms, predicted {self.predicted_s * 1e3:.1f} ms "
            f"({self.error:+.0%})"
        )


def check(calibration: Calibration, observations: Iterable[Observation]) -> list[Check]:
    """Compare the measured steps of several processes with the predictions of a calibration.

    Steps that cannot be predicted are omitted: steps of uncalibrated strategies, and steps of models for which there is
    no step of a single process.

    Args:
        calibration: The calibration.
        observations: The measured steps. The steps of one process provide the computing times for the other steps.
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
    """Return the mean relative error of the predictions. Return None if there are no predictions.

    The mean is geometric: for example, 0.2 means that predictions are typically too long or too short by a factor of
    1.2.
    """
    if not checks:
        return None
    return math.exp(statistics.mean(abs(math.log(one.predicted_s / one.measured_s)) for one in checks)) - 1.0
