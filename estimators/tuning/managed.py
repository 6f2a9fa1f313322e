"""Create a tuning job on a managed service (SageMaker), and copy the service's responses into the tuning job's record.

If this process ends, the tuning job continues on the service, and a new process can follow it. The record has the same
files as the record of a tuning job on the user's hosts. ``status.json`` and ``trials.json`` are written from the
service's responses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from estimators import backends
from estimators.job.errors import FleetfitError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.tuning.record import COMPLETED, FAILED, PRUNED, RUNNING, STOPPED, TuningRecord
from estimators.tuning.request import request_of

#: The maximum number of tries to upload the code and to create the tuning job if temporary errors occur.
_ATTEMPTS = 4
#: The longest wait before the next try after errors, in seconds.
_LONGEST_S = 60.0
#: The members of the service's description that are copied into the tuning job's status. The other members repeat the
#: tuning job's request.
_STATUS = (
    "HyperParameterTuningJobArn", "HyperParameterTuningJobStatus", "HyperParameterTuningEndTime",
    "TrainingJobStatusCounters", "ObjectiveStatusCounters", "FailureReason", "TuningJobCompletionDetails",
    "ConsumedResources",
)  # fmt: skip
#: The service's statuses of training jobs that have not ended.
_NOT_OVER = ("InProgress", "Stopping")


class ManagedTuning:
    """One tuning job on a managed service.

    Args:
        record: The tuning job's record. This process holds the record's lock.
    """

    def __init__(self, record: TuningRecord) -> None:
        self.record = record
        self.spec = record.spec
        self._options = JobOptions.from_dict(record.template.read_options())
        self._status = record.status()
        self._rows: list[dict[str, Any]] = record.trials()
        self._failures = 0
        self._stopped = False

    def run(self) -> None:
        """Create the tuning job if it does not exist yet, and follow it until it ends."""
        try:
            self._service = backends.load_service(self._options.backend).tuning_service(self._options)
        except FleetfitError as error:
            self._fail(str(error))
            return
        if self._own.get("taken") or self._create():
            self._follow()

    # --- creating ---

    def _create(self) -> bool:
        """Upload the code and create the tuning job.

        Returns:
            Whether the tuning job was created.
        """
        if self.record.stop_file.exists():
            self._end("Stopped", "the tuning job was stopped")
            return False
        spec = TrainingJobSpec.from_request(self.record.template.read_request())
        trial = spec.to_request()
        request = request_of(self.spec, trial, masked=False)
        if trial.get("Tags"):
            request["Tags"] = trial["Tags"]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._service.upload(spec, self.record.template.source_dir)
                self._service.create(request, float(self._status["CreationTime"]))
                break
            except Exception as error:  # noqa: BLE001 - the service explains every error
                text, passing = self._explained(error)
                if not passing or attempt == _ATTEMPTS:
                    self._fail(f"the tuning job could not be created: {text}")
                    return False
            time.sleep(self._wait(attempt))
        self._note(taken=True)
        return True

    # --- following ---

    def _follow(self) -> None:
        while not self._look():
            time.sleep(self._wait(self._failures))

    def _look(self) -> bool:
        """Query the service about the tuning job, and write changes into the record.

        Returns:
            Whether the tuning job is over.
        """
        trouble = self._pass_on_stop()
        try:
            answer = self._service.describe(self.spec.name)
            summaries = self._service.trials(self.spec.name) if answer is not None else []
        except Exception as error:  # noqa: BLE001 - the tuning job goes on at the service; query it again later
            self._failures += 1
            self._note(unanswered=self._explained(error)[0])
            return False
        self._failures = 0
        if answer is None:
            self._fail("SageMaker does not have the tuning job any more.")
            return True
        return self._take(answer, summaries, trouble)

    def _pass_on_stop(self) -> str | None:
        """Stop the tuning job on the service if the user has requested a stop. If this fails, the next call tries
        again.

        Returns:
            The reason why the stop failed, or None.
        """
        if self._stopped or not self.record.stop_file.exists():
            return None
        try:
            self._service.stop(self.spec.name)
        except Exception as error:  # noqa: BLE001 - the service explains every error
            return f"the tuning job could not be stopped: {self._explained(error)[0]}"
        self._stopped = True
        return None

    def _take(self, answer: Mapping[str, Any], summaries: list[dict[str, Any]], trouble: str | None) -> bool:
        """Write what has changed in the service's responses into the record.

        Args:
            answer: The service's description of the tuning job.
            summaries: The summaries of the tuning job's training jobs.
            trouble: An error to show to the user, or None.

        Returns:
            Whether the tuning job is over.
        """
        stopping = answer["HyperParameterTuningJobStatus"] in ("Stopping", "Stopped")
        numbers = {row["job"]: row["number"] for row in self._rows}
        rows = []
        for item in summaries:
            number = numbers.setdefault(item["TrainingJobName"], len(numbers))
            rows.append(_row(number, item, self.spec.metric, stopping=stopping))
        rows.sort(key=lambda row: row["number"])
        best = (answer.get("BestTrainingJob") or {}).get("TrainingJobName")
        own = {**self._own, "pid": os.getpid(), "best": numbers.get(best)}
        own.pop("unanswered", None)
        if trouble is not None:
            own["unanswered"] = trouble
        status = {**self._status, **{name: answer[name] for name in _STATUS if name in answer}, "Fleetfit": own}
        if rows != self._rows:
            self._rows = rows
            self.record.write("trials", {"trials": rows})
            self._write(status)
        elif status != self._status:
            self._write(status)
        return answer["HyperParameterTuningJobStatus"] in ("Completed", "Failed", "Stopped")

    # --- helpers ---

    @property
    def _own(self) -> dict[str, Any]:
        own: dict[str, Any] = self._status.get("Fleetfit", {})
        return own

    def _explained(self, error: Exception) -> tuple[str, bool]:
        if isinstance(error, FleetfitError):
            return str(error), False
        return self._service.explain(error)

    def _wait(self, failures: int) -> float:
        return min(self._service.poll_s * 2.0 ** min(failures, 16), max(_LONGEST_S, self._service.poll_s))

    def _note(self, **values: Any) -> None:
        status = {**self._status, "Fleetfit": {**self._own, "pid": os.getpid(), **values}}
        if status != self._status:
            self._write(status)

    def _fail(self, reason: str) -> None:
        self._end("Failed", reason)

    def _end(self, state: str, reason: str) -> None:
        ended = {"HyperParameterTuningJobStatus": state, "HyperParameterTuningEndTime": time.time()}
        failure = {"FailureReason": reason[:1024]} if state == "Failed" else {}
        self._write({**self._status, **ended, **failure, "Fleetfit": {**self._own, "ended_because": reason}})

    def _write(self, status: dict[str, Any]) -> None:
        self._status = {**status, "LastModifiedTime": time.time()}
        self.record.write("status", self._status)


def _row(number: int, item: Mapping[str, Any], metric: str, *, stopping: bool) -> dict[str, Any]:
    """Create the row of a trial from the service's summary of the trial's training job.

    Args:
        number: The trial's number.
        item: The summary, as plain data.
        metric: The name of the objective's metric.
        stopping: Whether the tuning job and its trials are being stopped.
    """
    status = item["TrainingJobStatus"]
    value = (item.get("FinalHyperParameterTuningJobObjectiveMetric") or {}).get("Value")
    reason = item.get("FailureReason")
    state = {"Completed": COMPLETED, "Failed": FAILED, "Stopped": STOPPED}.get(status, RUNNING)
    if status in _NOT_OVER:
        value = None
    elif status == "Completed" and value is None:
        state, reason = FAILED, reason or f"it never reported {metric!r}"
    elif status == "Stopped" and value is not None and not stopping:
        state, reason = PRUNED, "stopped early"
    return {
        "number": number,
        "job": item["TrainingJobName"],
        "origin": None,
        "values": dict(item.get("TunedHyperParameters") or {}),
        "state": state,
        "status": status,
        "value": value,
        "reason": reason,
        "created": item["CreationTime"],
        "started": item.get("TrainingStartTime"),
        "ended": item.get("TrainingEndTime") if status not in _NOT_OVER else None,
        "last": value,
        "reports": 0,
    }
