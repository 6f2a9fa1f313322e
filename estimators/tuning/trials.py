"""Start trials as ordinary training jobs made from the tuning job's template, and read the trials' values from the
jobs' records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from estimators.client import ipc_client, launch
from estimators.client.callbacks import EventTail, metric_of
from estimators.job.errors import JobUnreachableError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records.private_files import explained
from estimators.records.record import JobRecord, jobs_folder

#: The prefix for the names of ranges that are settings of the launcher, not hyperparameters of the script.
FLEET = "fleet."

#: The longest time that a trial gets for saving when it is stopped, in seconds.
STOP_GRACE = 5.0


def job_name(tuning: str, created: float, number: int) -> str:
    """Return the name of a trial's job, such as ``tuning-007-1a2b3c4d``. The name depends only on the arguments."""
    digest = hashlib.sha256(f"{tuning}:{created!r}:{number}".encode()).hexdigest()[:8]
    return f"{tuning}-{number + 1:03d}-{digest}"


def trial_spec(template: TrainingJobSpec, name: str, values: dict[str, str], home: Path) -> TrainingJobSpec:
    """Return the spec of a trial's job: the template with the trial's name and hyperparameters.

    Args:
        template: The template. The template's name is the tuning job's name.
        name: The name of the trial's job.
        values: The trial's hyperparameters, as the strings that a job's request contains.
        home: ``$FLEETFIT_HOME``.
    """
    ours = {key.removeprefix(FLEET): text for key, text in values.items() if key.startswith(FLEET)}
    template = _on_fleet(template, ours) if ours else template
    hyperparameters = {
        **template.hyperparameters,
        **{key: text for key, text in values.items() if not key.startswith(FLEET)},
    }
    if codec.JOB_NAME in hyperparameters:
        hyperparameters[codec.JOB_NAME] = codec.encode_value(codec.JOB_NAME, name)
    jobs = jobs_folder(home)
    for key, before, after in (
        (codec.SUBMIT_DIRECTORY, (jobs / template.name).as_uri(), (jobs / name).as_uri()),
        (codec.MODEL_DIR, f"/{template.name}/", f"/{name}/"),
    ):
        if key in hyperparameters:
            hyperparameters[key] = hyperparameters[key].replace(before, after)
    checkpoint = template.checkpoint
    if checkpoint is not None and checkpoint.uri:  # otherwise trials would continue from each other's checkpoints
        checkpoint = dataclasses.replace(checkpoint, uri=f"{checkpoint.uri.rstrip('/')}/{name}")
    return dataclasses.replace(template, name=name, hyperparameters=hyperparameters, checkpoint=checkpoint)


def _on_fleet(spec: TrainingJobSpec, values: dict[str, str]) -> TrainingJobSpec:
    """Return a copy of a spec with a different number of hosts or different options of the strategy.

    Args:
        spec: The job.
        values: The new values as JSON, by name. A name is ``hosts`` or the name of a field of the strategy.
    """
    found = {key: json.loads(text) for key, text in values.items()}
    hosts = found.pop("hosts", None)
    if hosts is not None:
        spec = dataclasses.replace(spec, resources=dataclasses.replace(spec.resources, instance_count=hosts))
    strategy = spec.strategy
    if not found or strategy is None:
        return spec
    gone = codec.encode(strategy.to_hyperparameters())
    kept = {key: text for key, text in spec.hyperparameters.items() if key not in gone}
    changed: Any = dataclasses.replace(strategy, **found)  # type: ignore[type-var]
    return dataclasses.replace(spec, hyperparameters={**kept, **codec.encode(changed.to_hyperparameters())})


def start(
    template: JobRecord, name: str, values: dict[str, str], home: Path, origin: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a trial's job. The job continues even if this process ends.

    Args:
        template: The template of the job.
        name: The job's name.
        values: The trial's hyperparameters, as the strings that a job's request contains.
        home: ``$FLEETFIT_HOME``.
        origin: The name of the job whose checkpoints are copied into the trial's record, or None. The script's
            Checkpointer restores the newest valid checkpoint.

    Raises:
        JobExistsError: the job already has a record.
        RecordError: the record cannot be written.
        BackendError: the job's supervisor, the process that runs the job, cannot be started.
    """
    spec = trial_spec(TrainingJobSpec.from_request(template.read_request()), name, values, home)
    options = JobOptions.from_dict(template.read_options())
    record = JobRecord.stage(name, home)
    try:
        launch.begin_record(record, spec, options, time.time())
        with explained(record.source_dir, "copy the source to"):
            if template.source_dir.is_dir():
                shutil.copytree(template.source_dir, record.source_dir, symlinks=True)
            for file in (template.provenance_file, template.found_file):
                if file.exists():
                    shutil.copyfile(file, record.path / file.name)
        checkpoints = jobs_folder(home) / origin / record.checkpoints_dir.name if origin is not None else None
        if checkpoints is not None and checkpoints.is_dir():
            with explained(record.checkpoints_dir, "copy the checkpoints to"):
                shutil.copytree(checkpoints, record.checkpoints_dir, symlinks=True, dirs_exist_ok=True)
        asked = template.read_json(template.asked_file)
        if asked is not None:
            hyperparameters = {**(asked["request"].get("HyperParameters") or {}), **values}
            asked["request"].update(TrainingJobName=name, HyperParameters=hyperparameters)
            record.write_json(record.asked_file, asked)
        record.publish(name)
    except BaseException:
        record.discard()
        raise
    return launch.start(record)


class Follower:
    """A reader of the values of the objective that a trial's job reports. Each poll continues where the last poll
    ended.

    As soon as a rank has reported a value, values of higher ranks are ignored. If rank 0, the chief, reports values,
    only the values of the chief count from then on.

    Attributes:
        values: The values that have been reported so far.
        times: The times of the values, in seconds since the epoch.
        others: The names of the other metrics that have been reported.
    """

    def __init__(self, record: JobRecord, objective: str) -> None:
        self._tail = EventTail(record)
        self._objective = objective
        self._rank: float = float("inf")
        self.values: list[float] = []
        self.times: list[float] = []
        self.others: set[str] = set()

    def poll(self) -> list[float]:
        """Return the values that have been reported since the last call."""
        begin = len(self.values)
        while events := self._tail.read():
            for metric in filter(None, map(metric_of, events)):
                if metric.name != self._objective:
                    self.others.add(metric.name)
                    continue
                rank = float(metric.rank) if metric.rank is not None else 1e9
                if rank <= self._rank:
                    self._rank = rank
                    self.values.append(metric.value)
                    self.times.append(metric.time)
        return self.values[begin:]


def final_value(status: dict[str, Any], objective: str) -> float | None:
    """Return the last value of the objective in a job's status. Return None if the status has no value."""
    for item in status.get("FinalMetricDataList") or ():
        if item["MetricName"] == objective:
            return float(item["Value"])
    return None


def ask_to_stop(record: JobRecord, reason: str) -> None:
    """Request that a trial's job stops, without waiting for its end.

    The script gets the job's ``stop_grace`` to save its state, but at most :data:`STOP_GRACE` seconds. Do nothing if
    the job's supervisor does not respond: the job has ended, or its supervisor was lost.

    Args:
        record: The record of the job.
        reason: The reason for the status message of the job.
    """
    options = record.read_options()
    grace = min(STOP_GRACE, float(options.get("stop_grace") or 0.0))
    with contextlib.suppress(JobUnreachableError):  # the job has ended, or its supervisor was lost
        ipc_client.request(record, ipc_client.stop_message(grace, reason), timeout=2.0)
