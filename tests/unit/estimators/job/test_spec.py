"""Specs render to CreateTrainingJob requests and read back equal."""

from __future__ import annotations

import dataclasses
import json
import string
from typing import Any

import pytest
from botocore.session import Session as BotocoreSession
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from container.contract import rules
from estimators.job.errors import ConfigurationError
from estimators.job.request import (
    Algorithm,
    CheckpointConfig,
    DataSource,
    FileSystemDataSource,
    InputChannel,
    JobOptions,
    MetricDefinition,
    OutputConfig,
    Resources,
    RetryStrategy,
    RunOptions,
    S3DataSource,
    Shuffle,
    StoppingCondition,
    Tag,
    TrainingJobSpec,
    VpcConfig,
)

TEXT = st.text(max_size=20)
NAME = st.text(alphabet=string.ascii_letters + string.digits, min_size=1, max_size=20)
OTHERS = st.dictionaries(
    st.sampled_from(["DebugHookConfig", "ExperimentConfig", "Unheard"]),
    st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=2)),
    max_size=2,
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


CHANNELS = st.builds(
    InputChannel,
    name=NAME,
    source=st.builds(
        DataSource,
        s3=maybe(
            st.builds(
                S3DataSource,
                uri=TEXT,
                data_type=st.sampled_from(["S3Prefix", "ManifestFile"]),
                distribution=maybe(st.sampled_from(["FullyReplicated", "ShardedByS3Key"])),
                attribute_names=st.lists(NAME, max_size=2),
                others=OTHERS,
            )
        ),
        file_system=maybe(st.builds(FileSystemDataSource, file_system_id=NAME, directory_path=TEXT)),
    ),
    input_mode=maybe(st.sampled_from(["File", "Pipe", "FastFile"])),
    content_type=maybe(TEXT),
    compression=maybe(st.sampled_from(["None", "Gzip"])),
    record_wrapper=maybe(st.sampled_from(["None", "RecordIO"])),
    shuffle=maybe(st.builds(Shuffle, seed=st.integers())),
)

SPECS = st.builds(
    TrainingJobSpec,
    name=NAME,
    role=TEXT,
    algorithm=st.builds(
        Algorithm,
        input_mode=st.sampled_from(["File", "Pipe", "FastFile"]),
        image=maybe(TEXT),
        metric_definitions=st.lists(st.builds(MetricDefinition, name=NAME, regex=TEXT), max_size=3),
        enable_metrics_time_series=maybe(st.booleans()),
        entry_point=st.lists(TEXT, max_size=2),
        arguments=st.lists(TEXT, max_size=2),
        others=OTHERS,
    ),
    hyperparameters=st.dictionaries(NAME, TEXT, max_size=4),
    inputs=st.lists(CHANNELS, max_size=3),
    output=st.builds(
        OutputConfig, path=TEXT, kms_key=maybe(TEXT), compression=maybe(st.sampled_from(["GZIP", "NONE"]))
    ),
    resources=st.builds(
        Resources,
        instance_type=maybe(NAME),
        instance_count=maybe(st.integers(1, 20)),
        volume_size_gb=maybe(st.integers(0, 100)),
        keep_alive_s=maybe(st.integers(0, 100)),
        others=OTHERS,
    ),
    vpc=maybe(st.builds(VpcConfig, subnets=st.lists(NAME, max_size=2), security_group_ids=st.lists(NAME, max_size=2))),
    stopping=st.builds(StoppingCondition, max_run_s=maybe(st.integers(1)), max_wait_s=maybe(st.integers(1))),
    tags=st.lists(st.builds(Tag, key=NAME, value=TEXT), max_size=2),
    network_isolation=maybe(st.booleans()),
    spot=maybe(st.booleans()),
    checkpoint=maybe(st.builds(CheckpointConfig, uri=TEXT, local_path=maybe(TEXT))),
    environment=st.dictionaries(NAME, TEXT, max_size=3),
    retry=maybe(st.builds(RetryStrategy, max_attempts=st.integers(1, 30))),
    others=OTHERS,
)


@given(SPECS)
@settings(max_examples=80, deadline=None)
def test_a_spec_reads_back_equal(spec: TrainingJobSpec) -> None:
    request = json.loads(json.dumps(spec.to_request()))
    assert TrainingJobSpec.from_request(request) == spec
    assert TrainingJobSpec.from_request(request).to_request() == request
    assert hash(TrainingJobSpec.from_request(request)) == hash(spec)


def test_a_request_with_every_member_survives() -> None:
    """What fleetfit does not look into is carried: generated from botocore's model, two levels deep and deeper."""
    shape = BotocoreSession().get_service_model("sagemaker").shape_for("CreateTrainingJobRequest")
    request = _example(shape)
    assert set(request) == set(shape.members)
    assert not ParamValidator().validate(request, shape).has_errors()
    assert TrainingJobSpec.from_request(request).to_request() == request


def _example(shape: Any) -> Any:
    if shape.type_name == "structure":
        return {name: _example(member) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return [_example(shape.member)]
    if shape.type_name == "map":
        return {"key": _example(shape.value)}
    return {"string": "text" * 20, "boolean": True}.get(shape.type_name, 2000)


def test_the_seed_of_a_request_is_small() -> None:
    spec = TrainingJobSpec(name="job", role="r", resources=Resources(instance_type="local_process", instance_count=2))
    assert spec.to_request() == {
        "TrainingJobName": "job",
        "RoleArn": "r",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": ""},
        "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 2},
        "StoppingCondition": {},
    }


def test_nothing_in_a_spec_can_be_changed_from_outside() -> None:
    values = {"epochs": "3"}
    spec = TrainingJobSpec(name="job", hyperparameters=values, others={"ExperimentConfig": {"RunName": "a"}})
    values["epochs"] = "4"
    spec.to_request()["ExperimentConfig"]["RunName"] = "b"
    assert spec.hyperparameters == {"epochs": "3"}
    assert spec.others == {"ExperimentConfig": {"RunName": "a"}}
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]


def test_others_cannot_contradict_a_field() -> None:
    with pytest.raises(ConfigurationError, match="TrainingJobName has its own field, name"):
        TrainingJobSpec(name="a", others={"TrainingJobName": "b"})


def test_wrong_types_of_a_request_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"TrainingJobSpec.InputDataConfig: expected a list, got 'x'"):
        TrainingJobSpec.from_request({"InputDataConfig": "x"})
    with pytest.raises(ConfigurationError, match="Resources: expected a structure, got 3"):
        TrainingJobSpec.from_request({"ResourceConfig": 3})


class TestRunOptions:
    def test_reads_back_equal(self) -> None:
        options = RunOptions(stop_grace=3, backend_options={"a": [1]})
        assert rules.from_dict(RunOptions, json.loads(json.dumps(rules.to_dict(options)))) == options
        saved = JobOptions.of(options, backend="local_fake", warnings=("a",), framework_version="2.21")
        assert JobOptions.from_dict(json.loads(json.dumps(rules.to_dict(saved)))) == saved
        assert saved.run_options == options

    def test_unknown_options_are_refused_by_name(self) -> None:
        with pytest.raises(ConfigurationError, match=r"unknown run option 'stop_graze'. Did you mean 'stop_grace'\?"):
            rules.from_dict(RunOptions, {"stop_graze": 3}, "run option")

    @pytest.mark.parametrize("values", [[], 3, None])
    def test_other_values_are_refused(self, values: Any) -> None:
        with pytest.raises(ConfigurationError, match="RunOptions: expected a JSON object"):
            rules.from_dict(RunOptions, values)

    @pytest.mark.parametrize("name", ["on_undistributed", "on_nan"])
    def test_what_is_done_about_what_is_noticed(self, name: str) -> None:
        assert getattr(RunOptions(), name) == "warn"
        options = rules.from_dict(RunOptions, rules.to_dict(RunOptions(**{name: "fail"})))
        assert getattr(options, name) == "fail"
        for value in ("fial", None, True, ["fail"]):
            with pytest.raises(ConfigurationError, match=rf"{name}=…\) .*Allowed: 'warn', 'fail'"):
                RunOptions(**{name: value})

    @pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "3", True, None])
    def test_times_are_checked(self, value: Any) -> None:
        with pytest.raises(ConfigurationError, match="stop_grace"):
            RunOptions(stop_grace=value)
