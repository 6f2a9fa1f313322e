"""What the endpoint keeps beside a record: read as it was last written, and changed by one at a time."""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.service import protocol
from estimators.service.errors import ServiceError
from estimators.service.models import Model
from estimators.service.records import Jobs
from estimators.service.settings import job_arn
from estimators.service.training import Training
from estimators.service.translation import Local

ARN = job_arn("us-east-1", "job")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    record = JobRecord.create("job", tmp_path)
    record.write_status(statuses.new_status({"TrainingJobName": "job"}, time.time()))
    jobs = Jobs(tmp_path, "us-east-1")
    nobody: Any = None
    yield Training(jobs, nobody, nobody, Local())
    record.release()


def tags(training: Training) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in training.list_tags({"ResourceArn": ARN})["Tags"]}


def test_what_was_written_in_the_same_tick_is_read(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def at_once(source: Any, target: Any) -> None:
        os.utime(source, ns=(1_000_000_000, 1_000_000_000))
        replace(source, target)

    monkeypatch.setattr(os, "replace", at_once)
    for number in range(3):
        training.add_tags({"ResourceArn": ARN, "Tags": [{"Key": "a", "Value": str(number)}]})
        assert tags(training) == {"a": str(number)}
    training.delete_tags({"ResourceArn": ARN, "TagKeys": ["a"]})
    assert tags(training) == {}


def test_a_key_that_comes_twice_is_refused(training: Training) -> None:
    twice = [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}]
    for call, named in ((training.add_tags, {"ResourceArn": ARN}), (training.create, {"TrainingJobName": "other"})):
        with pytest.raises(ServiceError, match="Duplicate tag keys are not allowed: 'a'"):
            call({**named, "Tags": twice})
    assert tags(training) == {}


def test_what_json_has_no_number_for_is_left_out(training: Training, tmp_path: Path) -> None:
    record = JobRecord(tmp_path / "jobs" / "job")
    values = {"loss": math.nan, "accuracy": 0.5, "largest": math.inf, "smallest": -math.inf}
    final = [{"MetricName": name, "Value": value, "Timestamp": 1.0} for name, value in values.items()]
    record.write_status({**(record.stored_status() or {}), "FinalMetricDataList": final})
    call = protocol.Call("sagemaker", "DescribeTrainingJob", "1.1", b"")
    answer = protocol.render(
        call, Model("sagemaker", ["DescribeTrainingJob"]), training.describe({"TrainingJobName": "job"})
    )
    assert json.loads(answer.body, parse_constant=pytest.fail)["FinalMetricDataList"] == [
        {"MetricName": "accuracy", "Value": 0.5, "Timestamp": 1.0}
    ]


def test_tags_that_are_added_at_once_are_all_kept(training: Training) -> None:
    def add(number: int) -> None:
        training.add_tags({"ResourceArn": ARN, "Tags": [{"Key": f"key-{number}", "Value": "1"}]})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert set(tags(training)) == {f"key-{number}" for number in range(40)}
