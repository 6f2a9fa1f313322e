"""A tuning job of a managed service, as far as its answers decide: a service that answers what a test says."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from container.contract import rules
from estimators.backends.sagemaker.backend import SageMakerBackend
from estimators.job.errors import JobExistsError
from estimators.job.request import JobOptions
from estimators.records.record import JobRecord
from estimators.tuner import IntegerParameter
from estimators.tuning import managed, ranges
from estimators.tuning.config import TuningSpec
from estimators.tuning.display import LiveTable, TrialLines, fitting, held_up_by
from estimators.tuning.record import TuningRecord

REQUEST = {
    "TrainingJobName": "study",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::123456789012:role/train",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    "HyperParameters": {"api_key": "k", "epochs": "3"},
    "Tags": [{"Key": "team", "Value": "a"}],
}
TRIAL = {"TrainingJobName": "study-001", "CreationTime": 1.0, "TunedHyperParameters": {"rate": "2"}}


class Service:
    """Answers from a list; an exception is raised instead."""

    poll_s = 0.001

    def __init__(self, *answers: Any, refusal: Exception | None = None) -> None:
        self.answers = list(answers)
        self.summaries: list[dict[str, Any]] = []
        self.created: list[dict[str, Any]] = []
        self.stops = 0
        self.refusal = refusal

    def upload(self, spec: Any, source: Path) -> None:
        pass

    def create(self, request: dict[str, Any], since: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append(request)

    def describe(self, name: str) -> dict[str, Any] | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"HyperParameterTuningJobStatus": answer} if answer is not None else None

    def trials(self, name: str) -> list[dict[str, Any]]:
        return self.summaries

    def stop(self, name: str) -> None:
        self.stops += 1
        if self.refusal is not None:
            raise self.refusal

    def explain(self, error: Exception) -> tuple[str, bool]:
        return f"{error}.", True


@pytest.fixture
def record(tmp_path: Path) -> TuningRecord:
    """A tuning job that has been put on record."""
    found = TuningRecord.stage("study", tmp_path / "home")
    parameters = ranges.to_request({"rate": IntegerParameter(1, 3)}, plain=False)
    spec = TuningSpec(name="study", objective="loss", parameter_ranges=parameters)
    found.write("tuning", {"spec": rules.to_dict(spec)})
    found.write("status", {"HyperParameterTuningJobStatus": "InProgress", "CreationTime": 1.0, "Fleetfit": {}})
    template: JobRecord = found.template
    template.write_request(REQUEST)
    template.write_options(rules.to_dict(JobOptions(backend="ml")))
    return found.publish("study")


def run(record: TuningRecord, service: Service, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the tuning job with a service, and return its status."""
    monkeypatch.setattr(SageMakerBackend, "tuning_service", lambda options: service)
    managed.ManagedTuning(record).run()
    return record.status()


def test_it_is_created_and_followed_to_its_end(record: TuningRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("InProgress", ConnectionError("no route"), "Completed")
    value = {"FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": "loss", "Value": 0.5}}
    service.summaries = [
        {**TRIAL, "TrainingJobStatus": "Completed", **value},
        {**TRIAL, "TrainingJobName": "study-002", "TrainingJobStatus": "Stopped", **value},
        {**TRIAL, "TrainingJobName": "study-003", "TrainingJobStatus": "Completed"},
        {**TRIAL, "TrainingJobName": "study-004", "TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError"},
    ]
    assert record.is_managed
    status = run(record, service, monkeypatch)
    assert status["HyperParameterTuningJobStatus"] == "Completed"
    assert held_up_by(record) is None
    [request] = service.created
    assert request["TrainingJobDefinition"]["StaticHyperParameters"] == REQUEST["HyperParameters"]  # secrets as well
    assert request["Tags"] == REQUEST["Tags"]
    assert [(row["state"], row["value"], row["reason"]) for row in record.trials()] == [
        ("Completed", 0.5, None),
        ("Pruned", 0.5, "stopped early"),
        ("Failed", None, "it never reported 'loss'"),
        ("Failed", None, "AlgorithmError"),
    ]


def test_another_process_does_not_create_it_again(record: TuningRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    record.write("status", {**record.status(), "Fleetfit": {"taken": True}})
    service = Service("Completed")
    assert run(record, service, monkeypatch)["HyperParameterTuningJobStatus"] == "Completed"
    assert service.created == []


def test_the_message_about_a_held_up_tuning_job_has_no_control_sequences(
    record: TuningRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write("status", {**record.status(), "Fleetfit": {"unanswered": "denied \x1b]0;owned\x07by AWS."}})
    with LiveTable(record, quiet=True) as live:
        live.changed()
        live.changed()
    goes_on = "The tuning job goes on at SageMaker, and fleetfit will ask again."
    assert capsys.readouterr() == ("", f"fleetfit: denied by AWS. {goes_on}\n")


def test_the_best_trial_is_marked_also_if_the_status_is_older_than_its_row(
    record: TuningRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"job": "study-001", "values": {"lr": "0.1"}, "state": "Completed", "reason": None}
    rows = [{**row, "number": 0, "value": 0.25}, {**row, "number": 1, "value": 0.5}]
    record.write("trials", {"trials": rows})
    TrialLines(record).changed()
    first, second = capsys.readouterr().out.splitlines()
    assert "best so far" not in first and second.endswith("best so far")


def test_following_goes_on_without_a_standard_error(record: TuningRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    record.write("status", {**record.status(), "Fleetfit": {"unanswered": "denied."}})
    reads, writes = os.pipe()
    os.close(reads)
    with io.TextIOWrapper(io.FileIO(writes, "w"), write_through=True) as closed:  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stderr", closed)
        LiveTable(record, quiet=True).changed()
        monkeypatch.undo()


def test_a_stop_that_is_denied_is_said_and_following_goes_on(
    record: TuningRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service("InProgress", "InProgress", "Completed", refusal=PermissionError("not allowed"))
    record.write("status", {**record.status(), "Fleetfit": {"taken": True}})
    record.ask_to_stop()
    status = run(record, service, monkeypatch)
    assert status["HyperParameterTuningJobStatus"] == "Completed"
    assert service.stops == 3
    assert "the tuning job could not be stopped: not allowed" in status["Fleetfit"]["unanswered"]
    assert held_up_by(record) is None  # it is over
    record.write("status", {**status, "HyperParameterTuningJobStatus": "InProgress"})
    assert "the tuning job could not be stopped: not allowed" in (held_up_by(record) or "")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [(JobExistsError("the name is taken"), "the name is taken"), (ConnectionError("no route"), "no route")],
)
def test_one_that_cannot_be_created_fails(
    record: TuningRecord, monkeypatch: pytest.MonkeyPatch, refusal: Exception, words: str
) -> None:
    status = run(record, Service(refusal=refusal), monkeypatch)
    assert status["HyperParameterTuningJobStatus"] == "Failed"
    assert words in status["FailureReason"]


def test_one_that_is_gone_fails(record: TuningRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    status = run(record, Service("InProgress", None), monkeypatch)
    assert "does not have the tuning job any more" in status["FailureReason"]


def test_a_table_that_is_too_wide_for_the_terminal_loses_its_least_important_columns() -> None:
    lines = [
        ["trial", "state", "loss", "time", "reports", "time", "job"],
        ["12", "Completed", "0.1234", "5", "1", "3.21 s", "tune-261127-16013591-012-d799"],
    ]
    assert fitting(lines, 100, 1) == lines
    assert [line[-1] for line in fitting(lines, 60, 1)] == ["time", "3.21 s"]
    assert fitting(lines, 20, 1) == [["trial", "state", "loss", "time"], ["12", "Completed", "0.1234", "5"]]
    lines = [["trial", "state", "loss", "lr", "units", "reports", "time", "job"], [*lines[1][:4], "64", *lines[1][4:]]]
    assert fitting(lines, 30, 2)[1] == ["12", "Completed", "0.1234", "lr=5, units=64"]
