"""Write a job's outcome into its record after all processes of the job have ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from container.contract.failures import Failure
from container.system import removing, unused
from estimators.backends import local
from estimators.job.request import TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.supervisor.journal import Journal


def archive_of(spec: TrainingJobSpec) -> str | None:
    """Return the path of the packed model. Return None if the job has no packed model."""
    folder = local.output_dir(spec)
    return str(folder / "model.tar.gz") if folder is not None and (folder / "model.tar.gz").exists() else None


def leave_reason(record: JobRecord, hosts: Sequence[str], failure: Failure) -> None:
    """Write why the job failed into each host's file ``output/failure``. Existing files are not changed."""
    for host in hosts:
        tree = record.tree(host)
        with contextlib.suppress(OSError):
            if tree.output.is_dir() and not tree.failure_file.exists():
                tree.failure_file.write_text(failure.reason(), encoding="utf-8")


def misplaced(record: JobRecord, found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a warning for each host whose script has saved a model into the working folder. Call the function only for
    a job whose model folder is empty.

    Args:
        record: The job's record.
        found: The paths of the models relative to the working folder, by host.
    """
    warnings = []
    for host, paths in found.items():
        folder = record.tree(host).code
        where = [str(folder / path) if (folder / path).exists() else path for path in paths]
        warnings.append(
            f"the job has no model: on {host}, the script saved a model ({', '.join(where)}) to its working folder, "
            "which is not an output of the job. Save the model to os.environ['SM_MODEL_DIR']."
        )
    return warnings


def write_ending(
    journal: Journal,
    record: JobRecord,
    spec: TrainingJobSpec,
    *,
    model: str | None,
    there: Mapping[str, Any] | None,
    stopped_as: tuple[SecondaryStatus, str] | None,
    failure: Failure | None,
) -> None:
    """Write the job's outcome, its model and the last values of its metrics into the status.

    Args:
        journal: The journal of the job.
        record: The job's record.
        spec: The job's spec with the hosts of the last attempt.
        model: The path of the model that a host has reported, or None.
        there: The service's last description of a job on a managed service. None for other jobs.
        stopped_as: The secondary status and the message of a job that was stopped. None if the job was not stopped.
        failure: The failure of the job, or None.
    """
    status = journal.status
    archive = model or archive_of(spec)
    if archive is not None:
        status["ModelArtifacts"] = {"S3ModelArtifacts": archive}
    final = journal.final_metrics.to_list()
    if final:
        status["FinalMetricDataList"] = final
    now = time.time()
    if there is not None:
        journal.status = statuses.mirrored(status, there, now, failure)
    elif stopped_as is not None:
        secondary, message = stopped_as
        journal.status = statuses.transition(status, secondary, now, message)
    elif failure is not None:
        leave_reason(record, spec.hosts, failure)
        journal.status = statuses.fail(status, failure, now)
    else:
        journal.status = statuses.transition(status, SecondaryStatus.COMPLETED, now)


def bill(journal: Journal) -> None:
    """Store the billable time in the status: the training time times the ratio of the paid price to the on-demand
    price.

    Change nothing if a price is unknown.
    """
    paid: Mapping[str, Any] = journal.own.get("cost") or {}
    if paid.get("complete") and paid.get("on_demand"):
        part = min(1.0, float(paid["total"]) / float(paid["on_demand"]))
        seconds = part * float(journal.status.get("TrainingTimeInSeconds") or 0)
        journal.status = statuses.with_billable(journal.status, seconds)


def tidy() -> None:
    """Remove the temporary folders of killed jobs, which could not remove the folders themselves."""
    with contextlib.suppress(Exception):  # an error in another job's folders must not fail this job
        for path in unused.unused_folders():
            removing.remove_tree(path, ignore_errors=True)
