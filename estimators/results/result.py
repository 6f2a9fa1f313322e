"""Represent the result of a job as one value. Reading the value needs neither TensorFlow nor the job's folder."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.durations import Durations
from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from estimators.job import strict_json
from estimators.job.errors import RecordError
from estimators.results.costs import JobCost

if TYPE_CHECKING:
    import pandas

#: The version of the format in which results are saved. It is increased when an older fleetfit would misread the new
#: format.
FORMAT = 2

#: The strategies whose ranks reduce their gradients in each step.
_SYNCHRONOUS = ("mpi", "collective_all_reduce", "elastic_horovod", "torch_distributed", "elastic_torch_distributed")

#: The phases from the start of the job until the slowest rank has finished its first step.
UNTIL_FIRST_STEP = ("launch", "import", "rendezvous", "first_step")

#: A rank is a straggler if its computing takes more than this factor times the median of the other ranks.
_STRAGGLES = 1.2
#: Differences below this, in seconds per step, are noise on any machine.
_NOISE_S = 0.0005


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of a metric.

    Attributes:
        name: The metric's name.
        value: The value.
        rank: The rank that reported the value. None for a process without a rank.
        host: The host of the process that reported the value.
        attempt: The number of the attempt, counted from 0.
        elapsed_s: The seconds since the job's creation.
        samples: The number of records that all ranks together had trained on in this attempt before the value. None if
            the number is unknown.
    """

    name: str
    value: float
    rank: int | None
    host: str
    attempt: int
    elapsed_s: float
    samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment at which an elastic job changed, for example because a worker joined.

    Attributes:
        kind: ``joined``, ``left``, ``resized``, ``excluded``, ``committed``, ``restored`` or ``restarted``.
        elapsed_s: The seconds since the job's creation.
        text: A description of the change.
    """

    kind: str
    elapsed_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """The facts about one rank.

    Attributes:
        rank: The number of the rank.
        host: The rank's host.
        steps: The distribution of the rank's step times in the last attempt. Empty if the times are unknown.
        exchange_s: The seconds per step in which the rank waited for reduced gradients after its own gradients were
            ready. The mean is computed for each epoch, and the value is the median of these means. None if the time was
            not measured.
        epochs_own_s: For each epoch, the mean seconds of a step without the time of waiting for reduced gradients.
        peak_memory_bytes: The peak memory (resident set) in bytes. None while the rank runs.
        exit_code: The exit code of the process. None while the process runs, or if a signal terminated the process.
        signal: The number of the signal that terminated the process, or None.
    """

    rank: int
    host: str
    steps: Durations = dataclasses.field(default_factory=Durations)
    exchange_s: float | None = None
    epochs_own_s: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None
    exit_code: int | None = None
    signal: int | None = None

    @property
    def own_s(self) -> float | None:
        """Return the seconds of a step without the time of waiting for other ranks. The value is the median over
        epochs. Return None if the time is unknown.
        """
        return statistics.median(self.epochs_own_s) if self.epochs_own_s else None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The facts about the model.

    Attributes:
        parameters: The number of all weights.
        trainable: The number of trainable weights.
        gradient_bytes: The size of all gradients of a step, in bytes.
        largest_bytes: The size of the largest gradient, in bytes. The largest gradient is never divided among parameter
            servers.
        tensors: The number of gradients.
        compression: ``fp16``, or None if gradients are not compressed.
    """

    parameters: int
    trainable: int
    gradient_bytes: int
    largest_bytes: int = 0
    tensors: int = 0
    compression: str | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The number, size and durations of a job's checkpoints.

    Attributes:
        count: The number of saved checkpoints.
        failed: The number of checkpoints that could not be saved.
        last_bytes: The size of the last checkpoint, in bytes.
        blocked_s: The total time for which the training was paused, in seconds.
        write_s: The total time of writing, in seconds. If saving is asynchronous, the writing overlaps with the
            training.
    """

    count: int
    failed: int = 0
    last_bytes: int = 0
    blocked_s: float = 0.0
    write_s: float = 0.0


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a job.

    Attributes:
        job_name: The job's name.
        status: The status, such as ``Completed``, ``Failed`` or ``Stopped``.
        secondary_status: The status in more detail, such as ``MaxRuntimeExceeded``.
        seconds: The seconds from the job's creation to its end. None while the job runs.
        phases: The seconds of each phase, by name. None for a phase whose time is unknown.
        final_metrics: The last value of each metric, by name.
        model_data: The location of the model, or None.
        checkpoints: The location of the checkpoints. None if there are no checkpoints.
        logs: The folder of the hosts' logs.
        failure_reason: The reason why the job failed, or None.
        strategy: The strategy's name. None for a job without a strategy, whose script runs on each host separately.
        instance_type: The instance type of the hosts.
        hosts: The number of hosts.
        processes: The number of ranks that compute gradients. With parameter servers, the number of workers.
        processes_per_host: The number of ranks or workers on each host, counted as for ``processes``.
        attempts: The number of times that the job was started.
        created: The time of the job's creation, in seconds since the epoch.
        training_s: SageMaker's TrainingTimeInSeconds. None while the job runs.
        billable_s: SageMaker's BillableTimeInSeconds. None while the job runs.
        hyperparameters: The script's hyperparameters. Secrets are replaced by ``***``.
        global_batch_size: The number of records in one step of all ranks. With parameter servers, the number of records
            in one step of a worker. None if the number is unknown.
        steps: The number of steps in the last attempt. A step of all ranks is counted once. With parameter servers,
            each step of a worker is counted.
        steps_per_second: The steps per second, without the first step and the time between epochs. None if the speed is
            unknown.
        samples_per_second: The records per second in the steps that ``steps_per_second`` counts. None if the speed is
            unknown.
        model: The facts about the model, or None.
        ranks: The facts about each rank.
        series: The values of the metrics in chronological order. If there are more than 50,000 values, some values are
            omitted at even intervals.
        series_left_out: The number of values that are omitted from ``series``. ``job.metrics()`` has all values.
        moments: The events of an elastic job: workers that joined and left, resizes, exclusions, commits and restores.
        checkpointing: The number, size and durations of the checkpoints. None if there are no checkpoints.
        data: The dicts ``{"uri", "digest"}``, by channel. ``uri`` is the location of the data. ``digest`` is the digest
            of the data, or None.
        spot: Whether the job used spot capacity.
        paid: The price that was paid for the hosts, if the backend bought hosts for the job. ``total`` is the price in
            US dollars. ``on_demand`` is the price of the same time on demand, or None. ``host_s`` is the paid time of
            all hosts in seconds. ``complete`` is whether all prices are known.
        provenance: The versions of the software, the commit and the machine.
        endings: If the job had several attempts, one line about the end of each attempt that did not complete.
        warnings: The warnings from the run. ``job.warnings`` also contains the warnings from before the start.
    """

    job_name: str
    status: str
    secondary_status: str
    seconds: float | None
    phases: Mapping[str, float | None]
    final_metrics: Mapping[str, float]
    model_data: str | None
    checkpoints: str | None
    logs: str
    failure_reason: str | None = None
    strategy: str | None = None
    instance_type: str | None = None
    hosts: int = 1
    processes: int = 1
    processes_per_host: int = 1
    attempts: int = 1
    created: float | None = None
    training_s: float | None = None
    billable_s: float | None = None
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    global_batch_size: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    model: ModelFacts | None = None
    ranks: tuple[RankResult, ...] = ()
    series: tuple[Point, ...] = ()
    series_left_out: int = 0
    moments: tuple[Moment, ...] = ()
    checkpointing: Checkpoints | None = None
    data: Mapping[str, Mapping[str, str | None]] = dataclasses.field(default_factory=dict)
    spot: bool = False
    paid: dict[str, Any] | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    endings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Result of {self.job_name!r}: {self.status}>"

    def __str__(self) -> str:
        from estimators.results import display, tables

        return display.job_table(self, columns=tables.terminal_width() or 100).rstrip("\n")

    # --- derived values ---

    @property
    def step_times(self) -> Durations:
        """Return the distribution of the step times of all ranks."""
        return Durations.sum(rank.steps for rank in self.ranks)

    @property
    def to_first_step_s(self) -> float | None:
        """Return the seconds from the start of the job until every rank has finished its first step.

        The value is the sum of the phases up to and including ``first_step``. Return None if the value is unknown.
        """
        if self.phases.get("first_step") is None:
            return None
        return sum(self.phases.get(name) or 0.0 for name in UNTIL_FIRST_STEP)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Return the highest memory usage of any rank, in bytes. Return None if the usage is unknown."""
        return max((rank.peak_memory_bytes for rank in self.ranks if rank.peak_memory_bytes), default=None)

    @property
    def reduced_bytes(self) -> int | None:
        """Return how many bytes of gradients each rank contributes to the reduction in a step.

        Return None if the ranks reduce no gradients or the number is unknown.
        """
        if self.model is None or self.processes < 2 or self.strategy not in _SYNCHRONOUS:
            return None
        return self.model.gradient_bytes // (2 if self.model.compression == "fp16" else 1)

    @property
    def link_bytes(self) -> float | None:
        """Return the minimum number of bytes that each rank sends in a step. Return None if the number is unknown.

        For a ring all-reduce, the number is 2(N−1)/N · S, where N is the number of ranks and S is
        :attr:`reduced_bytes`. With parameter servers, a worker reads all weights and sends all gradients, so that the
        number is twice the size of the gradients.
        """
        if self.strategy == "parameter_server":
            return 2.0 * self.model.gradient_bytes if self.model is not None else None
        if self.reduced_bytes is None:
            return None
        return 2.0 * (self.processes - 1) / self.processes * self.reduced_bytes

    @property
    def exchange_s(self) -> float | None:
        """Return for how many seconds per step the slowest rank waited for reduced gradients.

        The slowest rank is the rank that waits least, because all other ranks also wait for it. If gradients are
        reduced while other gradients are still being computed, this time is not included. Return None if the value is
        unknown.
        """
        return min((rank.exchange_s for rank in self.ranks if rank.exchange_s is not None), default=None)

    @property
    def bus_bandwidth(self) -> float | None:
        """Return the bytes per second on each rank's link, 2(N−1)/N · S ÷ :attr:`exchange_s`.

        N is the number of ranks, and S is :attr:`reduced_bytes`. The value can exceed the bandwidth of the link,
        because :attr:`exchange_s` omits the time that overlaps with computing. Return None with parameter servers, or
        if the value is unknown.
        """
        if self.link_bytes is None or not self.exchange_s or self.strategy == "parameter_server":
            return None
        return self.link_bytes / self.exchange_s

    @property
    def straggler(self) -> RankResult | None:
        """Return the rank for which all other ranks wait. Return None if there is no such rank.

        The computing of this rank took more than a fifth and more than 0.5 ms per step longer than the median of the
        other ranks. In addition, the rank was the slowest rank in at least two thirds of the epochs.
        """
        measured = [rank for rank in self.ranks if rank.epochs_own_s]
        if len(measured) < 2:
            return None
        epochs = min(len(rank.epochs_own_s) for rank in measured)
        slowest = max(measured, key=lambda rank: rank.own_s or 0.0)
        own_s = slowest.own_s or 0.0
        others_s = statistics.median(rank.own_s or 0.0 for rank in measured if rank is not slowest)
        often = sum(
            slowest.epochs_own_s[epoch] >= max(rank.epochs_own_s[epoch] for rank in measured) for epoch in range(epochs)
        )
        if own_s > max(_STRAGGLES * others_s, others_s + _NOISE_S) and often >= 2 / 3 * epochs:
            return slowest
        return None

    @property
    def spot_savings(self) -> float | None:
        """Return the managed spot savings in percent, as on SageMaker: (1 − billable time ÷ training time) · 100.

        Return None if a time is unknown.
        """
        if not self.training_s or self.billable_s is None:
            return None
        return (1 - self.billable_s / self.training_s) * 100

    def efficiency(self, baseline: Result) -> float | None:
        """Return the scaling efficiency: this result's speed per process, divided by the baseline's speed per process.

        The speed is in samples per second.

        Return None if a speed is unknown. Return None also for several hosts without a strategy, because each host then
        trains separately.

        Args:
            baseline: The result of the same training with one process, or with fewer processes than in this result.
        """
        if self.strategy is None and self.hosts > 1:
            return None
        if not self.samples_per_second or not baseline.samples_per_second:
            return None
        return (self.samples_per_second / self.processes) / (baseline.samples_per_second / baseline.processes)

    def cost(self, *, per_hour: float | None = None) -> JobCost | None:
        """Return the cost of the job at a price per host and hour.

        Args:
            per_hour: The price per host and hour in US dollars. If the backend bought hosts for the job, the default is
                the price that was paid. Otherwise, the default is the published on-demand price of the instance type
                (:mod:`estimators.job.instances`).

        Returns:
            The cost. None while the job runs, or if the price is unknown.
        """
        from estimators.results.costs import cost_of, paid_cost

        if self.paid is not None and per_hour is None:
            return paid_cost(self.paid)
        return cost_of(
            self.instance_type or "",
            hosts=self.hosts,
            training_s=self.training_s,
            billable_s=self.billable_s,
            per_hour=per_hour,
        )

    # --- conversions ---

    def metrics(self) -> pandas.DataFrame:
        """Return ``series`` as a DataFrame with a row per value.

        The columns are ``name``, ``value``, ``rank``, ``host``, ``attempt``, ``elapsed_s`` and ``samples``.
        """
        import pandas

        columns = [field.name for field in dataclasses.fields(Point)]
        frame = pandas.DataFrame([vars(point) for point in self.series], columns=columns)
        return frame.astype({"rank": "Int64", "samples": "Int64", "value": "float64", "elapsed_s": "float64"})

    def summary(self) -> dict[str, Any]:
        """Return the result as a flat dict of numbers and texts, from which the table of :func:`estimators.compare` is
        made.
        """
        from estimators.results.summary import summary

        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict, which :meth:`from_dict` reads."""
        found = dataclasses.asdict(dataclasses.replace(self, ranks=(), series=()))
        found["format"] = FORMAT
        found["ranks"] = [{**vars(rank), "steps": rank.steps.to_dict()} for rank in self.ranks]
        columns = [field.name for field in dataclasses.fields(Point)]
        found["series"] = {name: [getattr(point, name) for point in self.series] for name in columns}
        return found

    def to_json(self) -> str:
        """Return the JSON text of :meth:`to_dict`.

        Numbers that are not finite are written as strings, such as ``"NaN"``.
        """
        return strict_json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Create a result from a dict that :meth:`to_dict` returned. Fields that a later version has added are ignored.

        Raises:
            RecordError: the data is not a result, or has a format that this version cannot read.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("format"), int):
            raise RecordError("this is not the result of a training job.")
        if values["format"] > FORMAT:
            raise RecordError(
                f"the result was written by a newer fleetfit: its format is {values['format']}, and this fleetfit "
                f"reads up to {FORMAT}. Upgrade fleetfit to read it."
            )
        try:
            found = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
            for name in ("endings", "warnings"):
                found[name] = tuple(values.get(name) or ())
            found["ranks"] = tuple(
                RankResult(
                    **{
                        **_known(RankResult, rank),
                        "steps": Durations.from_dict(rank["steps"]),
                        "epochs_own_s": tuple(rank.get("epochs_own_s") or ()),
                    }
                )
                for rank in values.get("ranks") or ()
            )
            series = values.get("series") or {}
            rows = zip(*series.values(), strict=True)
            points = (_known(Point, dict(zip(series.keys(), row, strict=True))) for row in rows)
            found["series"] = tuple(Point(**{**point, "value": float(point["value"])}) for point in points)
            found["final_metrics"] = {name: float(value) for name, value in values["final_metrics"].items()}
            found["moments"] = tuple(Moment(**_known(Moment, moment)) for moment in values.get("moments") or ())
            for name, kind in (("model", ModelFacts), ("checkpointing", Checkpoints)):
                if found.get(name) is not None:
                    found[name] = kind(**_known(kind, found[name]))
            return cls(**found)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise RecordError(f"this is not the result of a training job: {error}.") from error

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a ``result.json``.

        Args:
            path: The path of the file, or of a job's folder that contains the file.

        Raises:
            RecordError: the file does not exist, or cannot be read.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "result.json"
        try:
            return cls.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RecordError(f"there is no {file}.") from None
        except (OSError, ValueError) as error:
            raise RecordError(f"{file} cannot be read: {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON. :meth:`load` reads the file. Return the path of the file."""
        file = Path(path)
        file.write_text(self.to_json(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        from estimators.results.page import result_html

        return result_html(self)


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}
