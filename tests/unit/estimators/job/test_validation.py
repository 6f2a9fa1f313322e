"""Requests are held to botocore's model, and to what SageMaker says beyond it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session as BotocoreSession
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import LOCAL_REQUEST

from estimators.job import service_model, shape_check, validation
from estimators.job.errors import ConfigurationError

SHAPE = BotocoreSession().get_service_model("sagemaker").shape_for("CreateTrainingJobRequest")


def changed(path: str, value: Any, request: dict[str, Any] = LOCAL_REQUEST) -> dict[str, Any]:
    request = copy.deepcopy(request)
    *folders, last = path.split(".")
    place = request
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return request


AWS = changed(
    "OutputDataConfig.S3OutputPath", "s3://bucket/prefix", changed("ResourceConfig.InstanceType", "ml.p3.2xlarge")
)


def problems(request: dict[str, Any]) -> list[str]:
    return list(validation.find_problems(request))


def channel(uri: str, name: str = "train") -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


UNICODE = changed("Tags", [{"Key": "équipe", "Value": "レナ 2"}])


@pytest.mark.parametrize("request_", [LOCAL_REQUEST, AWS, UNICODE], ids=["local", "aws", "unicode"])
def test_good_requests_pass(request_: dict[str, Any]) -> None:
    assert problems(request_) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("TrainingJobName", "x" * 101, "TrainingJobName has 101 characters"),
        ("TrainingJobName", "under_score", "TrainingJobName is 'under_score'; allowed: letters, digits and hyphens"),
        ("TrainingJobName", 5, "TrainingJobName must be a string, got 5."),
        ("HyperParameters.long", "9" * 2501, "HyperParameters['long'] has 2501 characters"),
        ("HyperParameters.number", 3, "HyperParameters['number'] must be a string, got 3."),
        ("HyperParameters", {f"p{n}": "1" for n in range(101)}, "HyperParameters has 101 entries; at most 100"),
        ("Environment.1A", "x", "Environment: the name '1A' is '1A'; allowed: letters, digits and underscores"),
        ("Environment.A", "x" * 513, "Environment['A'] has 513 characters"),
        ("Environment.A", "a\0b", "NUL"),
        ("ResourceConfig.InstanceCount", 0, "InstanceCount is 0; at least 1"),
        ("ResourceConfig.InstanceCount", 1.5, "must be a whole number, got 1.5"),
        ("ResourceConfig.InstanceCount", True, "must be a whole number, got True"),
        ("ResourceConfig.InstanceType", "local_proces", "Did you mean 'local_process'?"),
        ("ResourceConfig.InstanceTyp", "local", "unknown member 'InstanceTyp'. Did you mean 'InstanceType'?"),
        ("StoppingCondition.MaxRuntimeInSeconds", 0, "MaxRuntimeInSeconds is 0; at least 1 is needed."),
        ("StoppingCondition.MaxWaitTimeInSeconds", 59, "less than MaxRuntimeInSeconds (max_run), 60"),
        ("AlgorithmSpecification.TrainingInputMode", "Fil", "Did you mean 'File'?"),
        ("InputDataConfig", [channel("/a"), channel("/b")], "the channel 'train' is given 2 times"),
        ("InputDataConfig", [channel("/a", "no space")], "ChannelName is 'no space'"),
        ("InputDataConfig", [{"ChannelName": "a", "DataSource": {}}], "must have one source, got none"),
        ("InputDataConfig", [channel("relative")], "allowed: s3://bucket/prefix, file:///folder or an absolute path"),
        ("InputDataConfig", [], "InputDataConfig has 0 items; at least 1 are needed"),
        ("OutputDataConfig.S3OutputPath", "ftp://x", "OutputDataConfig.S3OutputPath is 'ftp://x'"),
        ("RetryStrategy", {"MaximumRetryAttempts": 31}, "is 31; at most 30 is allowed"),
        ("CheckpointConfig", {}, "CheckpointConfig.S3Uri is missing."),
        ("Tags", [{"Key": "a", "Value": "b!"}], "Tags[0].Value is 'b!'"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        validation.check_request(changed(path, value))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "path", [item.path for item in validation.LOCAL_RELAXATIONS if item.path.startswith(("Output", "Checkpoint"))]
)
def test_local_places_are_for_local_jobs_only(path: str) -> None:
    for value in ("file:///tmp/x", "/tmp/x"):
        assert problems(changed(path, value)) == []
        assert problems(changed(path, value, AWS)) != []


def test_a_plain_role_name_is_for_local_jobs_only() -> None:
    assert problems(changed("RoleArn", "dummy")) == []
    assert "an ARN such as" in problems(changed("RoleArn", "a-role-by-its-plain-name", AWS))[0]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    request = changed("TrainingJobName", "_", changed("ResourceConfig.InstanceCount", "2"))
    with pytest.raises(ConfigurationError) as caught:
        validation.check_request(request)
    assert len(str(caught.value).splitlines()) == 3


def test_every_pattern_of_the_model_can_be_used() -> None:
    for shape in service_model.extract_shapes().values():
        shape_check.compiled(shape.get("pattern"))


def test_instance_types_are_the_models() -> None:
    problem = validation.instance_type_problem("ml.p3.3xlarge")
    assert problem is not None and "Did you mean 'ml.p3.8xlarge'?" in problem and "'local_process'" in problem


# --- the same findings as botocore's validator, for types and required members ---

JUNK = st.sampled_from([None, 0, -1, 1.5, True, "", "text", [], ["a"], {}, {"Unheard": 1}])
PATHS = st.sampled_from(
    [
        *("TrainingJobName", "RoleArn", "Tags", "EnableManagedSpotTraining", "Unheard"),
        *("AlgorithmSpecification", "StoppingCondition", "InputDataConfig", "VpcConfig", "ProfilerConfig"),
        *("AlgorithmSpecification.TrainingInputMode", "AlgorithmSpecification.MetricDefinitions"),
        *("OutputDataConfig", "OutputDataConfig.S3OutputPath", "HyperParameters", "HyperParameters.epochs"),
        *("ResourceConfig.InstanceCount", "ResourceConfig.InstanceType"),
    ]
)


@given(st.lists(st.tuples(PATHS, JUNK), max_size=3))
@settings(max_examples=300, deadline=None)
def test_whatever_botocore_refuses_is_refused(changes: list[tuple[str, Any]]) -> None:
    request = copy.deepcopy(AWS)
    for path, value in changes:
        *folders, last = path.split(".")
        place: Any = request
        for folder in folders:
            place = place.get(folder)
            if not isinstance(place, dict):
                break
        else:
            place[last] = copy.deepcopy(value)  # the same one may be drawn twice
    refused = ParamValidator().validate(_without_none(request), SHAPE).has_errors()
    found = problems(request)
    assert found or not refused, ParamValidator().validate(_without_none(request), SHAPE).generate_report()


def _without_none(value: Any) -> Any:
    """botocore takes None for a wrong type; in our requests it means absent."""
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return value


# --- the cache of the model ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    service_model.load_shapes.cache_clear()
    yield tmp_path / "cache"
    service_model.load_shapes.cache_clear()


def test_the_model_is_cached_by_version(cache: Path) -> None:
    shapes = service_model.load_shapes()
    files = list(cache.rglob("*.json"))
    assert [file.name for file in files] == [f"create-training-job-{service_model.botocore_version()}.json"]
    assert json.loads(files[0].read_text())["shapes"] == shapes
    assert "documentation" not in files[0].read_text()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 0}', b'{"format": 1, "shapes": {}}', b"\xff\xfe"])
def test_a_damaged_cache_is_made_again(cache: Path, damage: bytes) -> None:
    expected = service_model.load_shapes()
    file = next(cache.rglob("*.json"))
    file.write_bytes(damage)
    service_model.load_shapes.cache_clear()
    assert service_model.load_shapes() == expected
    assert json.loads(file.read_text())["shapes"] == expected


def test_a_cache_that_cannot_be_written_only_costs_time(cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    assert service_model.ROOT_SHAPE in service_model.load_shapes()


def test_the_model_is_read_once_a_process(cache: Path) -> None:
    validation.check_request(LOCAL_REQUEST)
    shapes = service_model.load_shapes()
    validation.check_request(LOCAL_REQUEST)
    assert service_model.load_shapes() is shapes
