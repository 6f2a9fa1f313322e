"""Build a :class:`~estimators.results.result.Result` from the files of a job's record."""

from __future__ import annotations

import bisect
import contextlib
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.durations import Durations
from container.contract.strategies import Distribution
from container.contract.wire import Event
from estimators.job.errors import FleetfitError
from estimators.job.failure_policy import Ending
from estimators.job.metrics import FinalMetrics
from estimators.job.request import TrainingJobSpec
from estimators.job.secrets import mask_request
from estimators.records import outputs
from estimators.records import status as statuses
from estimators.records.elastic_events import Restores, words
from estimators.records.phases import phases
from estimators.records.provenance import read
from estimators.records.record import JobRecord
from estimators.results.result import Checkpoints, ModelFacts, Moment, Point, RankResult, Result
from estimators.results.thinning import thin

#: Kinds of events of an elastic job that become moments.
_MOMENTS = frozenset(("resized", "host_excluded", "commit", "restored", "restarted"))
#: Kinds of events that a result uses.
_KINDS = _MOMENTS | {"phase", "process_started", "process_ended", "metric", "steps", "model", "checkpoint"}
#: The hyperparameters that contain the size of a global batch. They are used if the script does not report the size.
_BATCH_NAMES = ("global-batch-size", "global_batch_size", "batch-size", "batch_size")
#: The members of the provenance that are copied into a result. The long list of packages is omitted.
_FACTS = ("software", "machine")


def build(record: JobRecord) -> Result:
    """Return the current result of a job, even while the job runs.

    Args:
        record: The job's record.
    """
    status = record.read_status()
    events, left_out = thin(event for event in record.events() if event.kind in _KINDS)
    return from_events(
        events,
        series_left_out=left_out,
        status=status,
        request=mask_request(record.read_request()),
        provenance=read(record.path),
        model_data=outputs.model_data(record),
        checkpoints=outputs.checkpoints(record) if outputs.has_checkpoints(record) else None,
        logs=str(record.hosts_dir),
    )


def from_events(
    events: list[Event],
    *,
    status: Mapping[str, Any],
    request: Mapping[str, Any],
    provenance: Mapping[str, Any],
    model_data: str | None = None,
    checkpoints: str | None = None,
    logs: str = "",
    series_left_out: int = 0,
) -> Result:
    """Build the result from a job's events. Pure.

    Args:
        events: The events, in the order of their arrival.
        status: The status, a response of DescribeTrainingJob.
        request: The CreateTrainingJob request, without secrets.
        provenance: The content of ``provenance.json``, or an empty mapping.
        model_data: The location of the model.
        checkpoints: The location of the checkpoints.
        logs: The folder of the logs.
        series_left_out: The number of metric values that were omitted from ``events``.
    """
    spec = TrainingJobSpec.from_request(request)
    strategy = _strategy(spec)
    created, end = status.get("CreationTime"), status.get("TrainingEndTime")
    attempt = max((event.attempt for event in events), default=0)
    last = [event for event in events if event.attempt == attempt]
    epochs = [event for event in last if event.kind == "steps"]
    chief = [event for event in epochs if event.rank == min((e.rank or 0 for e in epochs), default=0)]
    batch = next((int(event.data["batch_size"]) for event in chief if event.data.get("batch_size")), None)
    steps_per_second = _steps_per_second(chief)
    final = FinalMetrics()
    for event in events:
        final.add(event)
    reported = status.get("FinalMetricDataList")
    processes = spec.instance_count if strategy is None else strategy.ranks_per_host * spec.instance_count
    return Result(
        job_name=str(status.get("TrainingJobName") or spec.name),
        status=str(status["TrainingJobStatus"]),
        secondary_status=str(status.get("SecondaryStatus") or status["TrainingJobStatus"]),
        seconds=end - created if end is not None and created is not None else None,
        phases=phases(events),
        final_metrics={
            str(item["MetricName"]): float(item["Value"])
            for item in (reported if reported is not None else final.to_list())
        },
        model_data=model_data,
        checkpoints=checkpoints,
        logs=logs,
        failure_reason=status.get("FailureReason"),
        strategy=strategy.name if strategy is not None else None,
        instance_type=spec.instance_type or None,
        hosts=spec.instance_count,
        processes=processes,
        processes_per_host=processes // spec.instance_count,
        attempts=int(status.get(statuses.OWN, {}).get("attempt") or attempt) + 1,
        created=created,
        training_s=status.get("TrainingTimeInSeconds"),
        billable_s=status.get("BillableTimeInSeconds"),
        hyperparameters=spec.user_hyperparameters,
        global_batch_size=batch if batch is not None else _batch_of(spec.user_hyperparameters),
        steps=sum(int(event.data.get("steps") or 0) for event in chief) if chief else None,
        steps_per_second=steps_per_second,
        samples_per_second=_samples_per_second(chief, steps_per_second, batch, final),
        model=_model(last),
        ranks=_ranks(last),
        series=_series(events, created),
        series_left_out=series_left_out,
        moments=_moments(events, created),
        checkpointing=_checkpointing(events),
        data=_data(spec, provenance),
        spot=bool(spec.spot),
        paid=status.get(statuses.OWN, {}).get("cost"),
        provenance=_summary(provenance),
        endings=_endings(status),
        warnings=tuple(statuses.noticed(status)),
    )


def _endings(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line about the end of each attempt that did not complete. Return an empty tuple if the job has had only
    one attempt.
    """
    own = status.get(statuses.OWN, {})
    return tuple(Ending.from_dict(values).line() for values in own.get("attempts") or ()) if own.get("attempt") else ()


def _strategy(spec: TrainingJobSpec) -> Distribution | None:
    with contextlib.suppress(ValueError, TypeError, FleetfitError):
        return spec.strategy
    return None


def _steps_per_second(chief: list[Event]) -> float | None:
    """Return the number of steps per second. Return None if no durations are known.

    The number is computed from the durations of the steps. If these durations are unknown, the number is computed from
    the durations of the epochs. In this case, the first epoch is omitted, unless it is the only one.

    Args:
        chief: The events ``steps`` of the lowest rank in the last attempt, one for each epoch.
    """
    durations = [d for d in (_durations(event) for event in chief) if d is not None]
    if durations:
        total = Durations.sum(durations)
        return total.count / total.total_s if total.total_s else None
    kept = chief[1:] or chief
    seconds = sum(float(event.data.get("seconds") or 0.0) for event in kept)
    return sum(int(event.data.get("steps") or 0) for event in kept) / seconds if seconds else None


def _samples_per_second(
    chief: list[Event], steps_per_second: float | None, batch: int | None, final: FinalMetrics
) -> float | None:
    if steps_per_second is not None and batch is not None:
        return steps_per_second * batch
    if chief:
        return None
    reported = {item["MetricName"]: item["Value"] for item in final.to_list()}
    return reported.get("samples_per_second")


def _batch_of(hyperparameters: Mapping[str, Any]) -> int | None:
    for name in _BATCH_NAMES:
        value = hyperparameters.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _durations(event: Event) -> Durations | None:
    found = event.data.get("durations")
    with contextlib.suppress(ValueError):
        return Durations.from_dict(found) if isinstance(found, dict) else None
    return None


def _model(events: Iterable[Event]) -> ModelFacts | None:
    found = [event.data for event in events if event.kind == "model"]
    if not found:
        return None
    names = ("parameters", "trainable", "gradient_bytes", "largest_bytes", "tensors")
    compression = found[-1].get("compression")
    return ModelFacts(
        **{name: int(found[-1].get(name) or 0) for name in names},
        compression=str(compression) if compression else None,
    )


def _ranks(events: list[Event]) -> tuple[RankResult, ...]:
    """Return the facts about each rank of the last attempt."""
    found: dict[int, dict[str, Any]] = {}
    waits: dict[int, list[float]] = {}
    for event in events:
        if event.rank is None:
            continue
        if event.kind in ("process_started", "process_ended", "steps"):
            known = found.setdefault(event.rank, {"rank": event.rank, "host": event.host, "steps": Durations()})
            known["host"] = event.host
        if event.kind == "process_ended":
            kilobytes = event.data.get("max_rss_kb")
            known["peak_memory_bytes"] = int(kilobytes) << 10 if kilobytes else None
            known["exit_code"], known["signal"] = event.data.get("exit_code"), event.data.get("signal")
        elif event.kind == "steps":
            durations = _durations(event)
            if durations is not None:
                known["steps"] = Durations.sum((known["steps"], durations))
            if event.data.get("exchanges") and durations is not None and durations.mean_s is not None:
                wait_s = float(event.data.get("exchange_s") or 0.0) / int(event.data["exchanges"])
                waits.setdefault(event.rank, []).append(wait_s)
                known.setdefault("epochs_own_s", []).append(max(0.0, durations.mean_s - wait_s))
    for rank, found_s in waits.items():
        found[rank]["exchange_s"] = statistics.median(found_s)
        found[rank]["epochs_own_s"] = tuple(found[rank]["epochs_own_s"])
    return tuple(RankResult(**found[rank]) for rank in sorted(found))


def _series(events: list[Event], created: float | None) -> tuple[Point, ...]:
    """Return the values of the metrics.

    :attr:`Point.samples` counts the records up to the end of the last epoch before the value.

    Args:
        events: The job's events.
        created: The time of the job's creation, in seconds since the epoch. If None, times are counted from the first
            value.
    """
    values = [
        event
        for event in events
        if event.kind == "metric"
        and isinstance(event.data.get("name"), str)
        and isinstance(event.data.get("value"), int | float)
    ]
    origin = created * 1e9 if created is not None else min((event.time_ns for event in values), default=0)
    ends: dict[int, tuple[list[int], list[int]]] = {}
    first = min((event.rank or 0 for event in events if event.kind == "steps"), default=0)
    for event in events:
        if event.kind == "steps" and event.rank == first and event.data.get("batch_size"):
            times, samples = ends.setdefault(event.attempt, ([], []))
            before = samples[-1] if samples else 0
            times.append(event.time_ns)
            samples.append(before + int(event.data.get("steps") or 0) * int(event.data["batch_size"]))
    points = []
    for event in values:
        times, samples = ends.get(event.attempt, ([], []))
        place = bisect.bisect_right(times, event.time_ns)
        points.append(
            Point(
                name=event.data["name"],
                value=float(event.data["value"]),
                rank=event.rank,
                host=event.host,
                attempt=event.attempt,
                elapsed_s=(event.time_ns - origin) / 1e9,
                samples=samples[place - 1] if place else None,
            )
        )
    return tuple(points)


def _moments(events: list[Event], created: float | None) -> tuple[Moment, ...]:
    """Return the changes of an elastic job in chronological order. The first membership is omitted, because it changes
    nothing.

    Args:
        events: The job's events.
        created: The time of the job's creation, in seconds since the epoch. If None, times are counted from the first
            change.
    """
    kept = [event for event in events if event.kind in _MOMENTS]
    origin = created * 1e9 if created is not None else min((event.time_ns for event in kept), default=0)
    found: list[Moment] = []
    restores = Restores()
    for event in kept:
        if event.kind == "restored" and not restores.begins(event):
            continue
        at = (event.time_ns - origin) / 1e9
        found += [Moment(kind=kind, elapsed_s=at, text=text) for kind, text in words(event)]
    return tuple(found)


def _checkpointing(events: Iterable[Event]) -> Checkpoints | None:
    told = [event.data for event in events if event.kind == "checkpoint"]
    saved = [data for data in told if data.get("action") == "saved"]
    failed = sum(data.get("action") == "failed" for data in told)
    if not saved and not failed:
        return None
    return Checkpoints(
        count=len(saved),
        failed=failed,
        last_bytes=int(saved[-1].get("bytes") or 0) if saved else 0,
        blocked_s=sum(float(data.get("snapshot_s") or 0.0) + float(data.get("waited_s") or 0.0) for data in saved),
        write_s=sum(float(data.get("write_s") or 0.0) for data in saved),
    )


def _data(spec: TrainingJobSpec, provenance: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    digests = provenance.get("data") or {}
    found: dict[str, dict[str, str | None]] = {}
    for channel in spec.to_request().get("InputDataConfig") or ():
        name = str(channel.get("ChannelName"))
        source = channel.get("DataSource") or {}
        uri = (source.get("S3DataSource") or {}).get("S3Uri") or str(source)
        found[name] = {"uri": str(uri), "digest": (digests.get(name) or {}).get("digest")}
    return found


def _summary(provenance: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: provenance[name] for name in _FACTS if provenance.get(name)}
    python = provenance.get("python") or {}
    git = provenance.get("git") or {}
    if python.get("version"):
        found["python"] = python["version"]
    if git.get("commit"):
        found["commit"] = git["commit"] + ("+" if git.get("dirty") else "")
    if provenance.get("seeds"):
        found["seeds"] = provenance["seeds"]
    return found
