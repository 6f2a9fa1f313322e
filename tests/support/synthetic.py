"""Jobs that never ran: their records, events as a job reports them, and the results that follow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from container.contract.durations import Durations
from container.contract.hyperparameters import encode
from container.contract.wire import Event, Piece
from estimators import MPI, CollectiveAllReduce, Estimator, ParameterServer, TrainingJob
from estimators.client.launch import fill
from estimators.records import status as statuses
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.results.build import from_events
from estimators.results.result import Result

SECOND = 10**9
COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: The smallest CreateTrainingJob request of a job on this machine that is complete.
LOCAL_REQUEST: dict[str, Any] = {
    "TrainingJobName": "job-1",
    "RoleArn": "arn:aws:iam::000000000000:role/fleetfit-local",
    "AlgorithmSpecification": {"TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "file:///tmp/out"},
    "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    "HyperParameters": {"epochs": "3"},
    "Environment": {"A": "b"},
}
STRATEGIES: dict[str, Any] = {"mpi": MPI, "collective_all_reduce": CollectiveAllReduce}


def request(
    strategy: str | None = "mpi", *, hosts: int = 2, instance_type: str = "ml.p3.2xlarge", **members: Any
) -> dict[str, Any]:
    """A CreateTrainingJob request, as far as a result looks at it."""
    hyperparameters = {"epochs": "3"}
    if strategy == "parameter_server":
        hyperparameters |= encode(ParameterServer().to_hyperparameters())
    elif strategy is not None:
        hyperparameters |= encode(STRATEGIES[strategy](processes_per_host=1).to_hyperparameters())
    return {
        "TrainingJobName": "digits-1",
        "HyperParameters": hyperparameters,
        "ResourceConfig": {"InstanceType": instance_type, "InstanceCount": hosts},
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "file:///d"}}}
        ],
        **members,
    }


def status(name: str = "Completed", **values: Any) -> dict[str, Any]:
    """DescribeTrainingJob's answer, as far as a result looks at it."""
    return {
        "TrainingJobName": "digits-1", "TrainingJobStatus": name, "SecondaryStatus": name, "CreationTime": 1000.0,
        "TrainingEndTime": 1100.0, "TrainingTimeInSeconds": 100, "BillableTimeInSeconds": 40, **values,
    }  # fmt: skip


def durations(seconds: float, count: int) -> dict[str, Any]:
    found = Durations()
    found.add(seconds, count)
    return found.to_dict()


def training(
    *,
    ranks: int = 2,
    epochs: int = 3,
    steps: int = 50,
    step_s: float = 0.02,
    waits_s: tuple[float, ...] = (0.004, 0.004),
    batch_size: int = 64,
    loss: float = 1.0,
) -> list[Event]:
    """The events of a training."""

    def event(kind: str, second: float, rank: int | None, **data: Any) -> Event:
        host = f"algo-{(rank or 0) + 1}"
        return Event(kind=kind, host=host, time_ns=int((1000 + second) * SECOND), rank=rank, data=data)

    events = [event("phase", 0, None, name="job_created")]
    for rank in range(ranks):
        events.append(event("process_started", 1, rank, name=f"rank {rank}", pid=10 + rank))
    events.append(event("phase", 1, None, name="ranks_started"))
    for name, second in (("imported", 5), ("rendezvous", 6), ("first_step", 9)):
        events.append(event("phase", second, 0, name=name))
    for epoch in range(1, epochs + 1):
        second = 10.0 * epoch
        for rank in range(ranks):
            events.append(
                event(
                    "steps", second, rank, epoch=epoch, steps=steps, seconds=steps * step_s, batch_size=batch_size,
                    durations=durations(step_s, steps), exchange_s=waits_s[rank] * steps, exchanges=steps,
                )
            )  # fmt: skip
        if epoch == 1:
            events.append(
                event(
                    "model", second, 0, parameters=1_000_100, trainable=1_000_000, gradient_bytes=4_000_000,
                    largest_bytes=3_000_000, tensors=8, compression=None,
                )
            )  # fmt: skip
        events.append(event("metric", second + 0.1, 0, name="loss", value=loss / epoch))
        events.append(event("metric", second + 0.1, 1, name="loss", value=loss / epoch + 0.5))
    events.append(
        event("checkpoint", 40, 0, action="saved", bytes=4_000_000, snapshot_s=0.1, waited_s=0.2, write_s=1.5)
    )
    events.append(event("phase", 45, 0, name="training_ended"))
    for rank in range(ranks):
        events.append(
            event("process_ended", 50, rank, name=f"rank {rank}", exit_code=0, signal=None, max_rss_kb=1000 + rank)
        )
    return [*events, event("phase", 100, None, name="job_ended")]


def result(
    strategy: str | None = "mpi",
    *,
    events: list[Event] | None = None,
    name: str = "digits-1",
    state: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    hosts: int = 2,
    instance_type: str = "ml.p3.2xlarge",
    **shape: Any,
) -> Result:
    """The result of such a job."""
    return from_events(
        events if events is not None else training(**shape),
        status={**(state or status()), "TrainingJobName": name},
        request=request(strategy, hosts=hosts, instance_type=instance_type),
        provenance=provenance or {},
        logs="/logs",
    )


def recorded(estimator: Estimator) -> TrainingJob:
    """Return an estimator's job as it is on record before anything runs, with no supervisor."""
    draft = estimator._draft(None, None)
    record = JobRecord.create(draft.spec.name)
    fill(record, draft.spec, draft.options, draft.source, 1000.0)
    record.release()
    return TrainingJob(record)


def ended(name: str, lines: Sequence[str] = (), events: Sequence[Event] = ()) -> JobRecord:
    """Put a job on record that has completed, with what its only rank has printed."""
    record = JobRecord.create(name)
    made = {**request(None, hosts=1), "TrainingJobName": name}
    record.write_request(made)
    described = statuses.new_status(made, time.time())
    for step in (SecondaryStatus.TRAINING, SecondaryStatus.COMPLETED):
        described = statuses.transition(described, step, time.time())
    writer = LogWriter(record)
    for line in lines:
        writer.write(Piece("algo-1", "rank 0", f"{line}\n".encode()))
    writer.flush()
    record.append_events(events)
    record.write_status(described)
    record.release()
    return record


def provenance(**changes: Any) -> dict[str, Any]:
    """The provenance of a job that a script in a repository has started."""
    values: dict[str, Any] = {
        "format": 1,
        "complete": True,
        "pending": [],
        "errors": {},
        "caller": {
            "kind": "command",
            "argv": ["/env/bin/python", "/repo/code/fit.py", "--data", "/repo/data", "--out", "/tmp/x y"],
            "cwd": "/repo/code",
        },
        "python": {"version": "3.12.1"},
        "seeds": {"seed": 3},
        "environment": {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_API_TOKEN": "***", "LD_LIBRARY_PATH": "/x"},
        "git": {
            "root": "/repo",
            "commit": COMMIT,
            "branch": "main",
            "remote": "https://example.org/r.git",
            "dirty": True,
            "diff": "diff --git a/x b/x\n",
            "diff_truncated": None,
            "untracked_left_out": ["big.bin"],
        },
        "software": {"tensorflow": "2.21.0", "horovod": "0.28.1"},
        "packages": {"freeze": ["horovod==0.28.1", "tensorflow==2.21.0"], "conda": None},
        "data": {"train": {"path": "/d", "files": 2, "bytes": 10, "digest": "abc", "complete": False}},
    }
    return {**values, **changes}
