"""Settings become the request that the SageMaker SDK 2.x would send, with local places where it runs locally."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container.contract import hyperparameters as codec
from container.contract.strategies import MPI, ParameterServer
from estimators.client import request_builder
from estimators.client.request_builder import Code
from estimators.job import validation
from estimators.job.errors import ConfigurationError
from estimators.job.inputs import parse_inputs
from estimators.job.request import RunOptions
from estimators.job.settings import Settings

CODE = Code(program="train.py", submit_directory="file:///src")
IMAGE_CONFIG = "AlgorithmSpecification.TrainingImageConfig"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def build(settings: Settings, inputs: Any = None, **options: Any) -> dict[str, Any]:
    spec = request_builder.build_spec(
        settings, **{"name": "job", "channels": parse_inputs(inputs), "code": CODE, "passes_model_dir": True, **options}
    )
    validation.check_spec(spec)
    return spec.to_request()


def hyperparameters(code: Code | None = CODE, passes_model_dir: bool = True, **settings: Any) -> dict[str, str]:
    return request_builder.build_hyperparameters(
        Settings(**settings), name="job", code=code, passes_model_dir=passes_model_dir
    )


def test_a_small_local_job(home: Path) -> None:
    request = build(Settings(hyperparameters={"epochs": 3}), {"train": "/data"})
    assert request == {
        "TrainingJobName": "job",
        "RoleArn": request_builder.PLACEHOLDER_ROLE,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "HyperParameters": {
            "epochs": "3",
            "model_dir": json.dumps(f"{home}/jobs/job/model"),
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": '"file:///src"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"job"',
        },
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {
                        "S3Uri": "/data",
                        "S3DataType": "S3Prefix",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": (home / "jobs").as_uri()},
        "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    }


#: Settings that go into the request as they are: each with a value and its place there.
AS_GIVEN = [
    ("role", "arn:aws:iam::123456789012:role/me", "RoleArn"),
    ("instance_count", 2, "ResourceConfig.InstanceCount"),
    ("instance_type", "ml.p3.2xlarge", "ResourceConfig.InstanceType"),
    ("keep_alive_period_in_seconds", 600, "ResourceConfig.KeepAlivePeriodInSeconds"),
    ("volume_size", 50, "ResourceConfig.VolumeSizeInGB"),
    ("volume_kms_key", "volume-key", "ResourceConfig.VolumeKmsKeyId"),
    ("training_plan", "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p", "ResourceConfig.TrainingPlanArn"),
    ("image_uri", "123.dkr.ecr/image:1", "AlgorithmSpecification.TrainingImage"),
    ("input_mode", "Pipe", "AlgorithmSpecification.TrainingInputMode"),
    ("metric_definitions", [{"Name": "a", "Regex": "a: (.*)"}], "AlgorithmSpecification.MetricDefinitions"),
    ("enable_sagemaker_metrics", True, "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"),
    ("container_entry_point", ["python"], "AlgorithmSpecification.ContainerEntrypoint"),
    ("container_arguments", ["-c"], "AlgorithmSpecification.ContainerArguments"),
    ("training_repository_access_mode", "Vpc", f"{IMAGE_CONFIG}.TrainingRepositoryAccessMode"),
    (
        "training_repository_credentials_provider_arn",
        "arn:aws:lambda:us-east-1:123456789012:function:f",
        f"{IMAGE_CONFIG}.TrainingRepositoryAuthConfig.TrainingRepositoryCredentialsProviderArn",
    ),
    ("output_path", "s3://bucket/out", "OutputDataConfig.S3OutputPath"),
    ("output_kms_key", "output-key", "OutputDataConfig.KmsKeyId"),
    ("max_run", 3600, "StoppingCondition.MaxRuntimeInSeconds"),
    ("max_wait", 7200, "StoppingCondition.MaxWaitTimeInSeconds"),
    ("use_spot_instances", True, "EnableManagedSpotTraining"),
    ("max_retry_attempts", 3, "RetryStrategy.MaximumRetryAttempts"),
    ("checkpoint_s3_uri", "s3://bucket/checkpoints", "CheckpointConfig.S3Uri"),
    ("checkpoint_local_path", "/opt/ml/checkpoints", "CheckpointConfig.LocalPath"),
    ("subnets", ["subnet-1"], "VpcConfig.Subnets"),
    ("security_group_ids", ["sg-1"], "VpcConfig.SecurityGroupIds"),
    ("encrypt_inter_container_traffic", True, "EnableInterContainerTrafficEncryption"),
    ("enable_network_isolation", True, "EnableNetworkIsolation"),
    ("enable_infra_check", True, "InfraCheckConfig.EnableInfraCheck"),
    ("enable_remote_debug", True, "RemoteDebugConfig.EnableRemoteDebug"),
    ("enable_session_tag_chaining", True, "SessionChainingConfig.EnableSessionTagChaining"),
]


def places(members: Any, above: str = "") -> dict[str, Any]:
    """Each value of a request by its place."""
    found: dict[str, Any] = {}
    for name, value in members.items():
        found |= places(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return found


def test_everything_that_aws_can_do() -> None:
    given: dict[str, Any] = {name: value for name, value, _ in AS_GIVEN}
    others = {"disable_output_compression": True, "environment": {"A": "b"}, "tags": {"team": "a"}}
    settings = Settings(**given, **others, model_uri="s3://bucket/model.tar.gz", distribution=MPI())
    request = build(settings, "s3://bucket/data", experiment={"ExperimentName": "e"})
    assert [channel["ChannelName"] for channel in request.pop("InputDataConfig")] == ["training", "model"]
    del request["HyperParameters"]
    assert places(request) == {
        **{place: value for _, value, place in AS_GIVEN},
        "TrainingJobName": "job",
        "OutputDataConfig.CompressionType": "NONE",
        "Environment.A": "b",
        "Tags": [{"Key": "team", "Value": "a"}],
        "ExperimentConfig.ExperimentName": "e",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model_dir": False}, None),
        ({"model_dir": "/some/dir"}, "/some/dir"),
        ({"model_dir": "/some/dir", "distribution": MPI()}, "/some/dir"),
        ({"distribution": MPI()}, "/opt/ml/model"),
        ({}, "HOME/jobs/job/model"),
        ({"distribution": ParameterServer()}, "HOME/jobs/job/model"),
        ({"output_path": "file:///out"}, "/out/job/model"),
        ({"output_path": "/out/"}, "/out/job/model"),
        ({"output_path": "s3://bucket/p/", "instance_type": "ml.p3.2xlarge"}, "s3://bucket/p/job/model"),
    ],
)
def test_model_dir_follows_the_sdk(home: Path, arguments: dict[str, Any], expected: str | None) -> None:
    found = json.loads(hyperparameters(**arguments).get("model_dir", "null"))
    assert found == (expected.replace("HOME", str(home)) if expected is not None else None)


def test_other_estimators_pass_no_model_dir() -> None:
    assert "model_dir" not in hyperparameters(passes_model_dir=False)
    assert hyperparameters(code=None, passes_model_dir=False) == {}


def test_a_model_dir_among_the_hyperparameters() -> None:
    given = {"model_dir": "/x"}
    with pytest.raises(ConfigurationError, match="to pass the hyperparameter itself"):
        hyperparameters(hyperparameters=given)
    assert hyperparameters(hyperparameters=given, model_dir=False)["model_dir"] == '"/x"'
    assert hyperparameters(hyperparameters=given, passes_model_dir=False)["model_dir"] == '"/x"'


def test_the_region_is_sent_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert build(Settings())["HyperParameters"]["sagemaker_region"] == '"eu-west-1"'


def test_roles() -> None:
    assert build(Settings(role="SageMakerRole"))["RoleArn"].endswith(":role/SageMakerRole")
    assert build(Settings(role="arn:aws:iam::123456789012:role/x"))["RoleArn"] == "arn:aws:iam::123456789012:role/x"


def test_the_code_is_where_the_sdk_puts_it(home: Path) -> None:
    local, remote = Settings(), Settings(instance_type="ml.p3.2xlarge", output_path="s3://bucket/out")
    assert request_builder.submit_directory(local, "job") == (home / "jobs/job/source").as_uri()
    assert request_builder.submit_directory(remote, "job") == "s3://bucket/out/job/source/sourcedir.tar.gz"
    placed = Settings(instance_type="ml.p3.2xlarge", code_location="s3://code/p")
    assert request_builder.submit_directory(placed, "job") == "s3://code/p/job/source/sourcedir.tar.gz"


def test_a_home_with_spaces_and_percent_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from estimators.backends.local import output_dir

    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "a b%20c"))
    spec = request_builder.build_spec(Settings(), name="job", channels=(), code=CODE, passes_model_dir=True)
    assert output_dir(spec) == tmp_path / "a b%20c" / "jobs" / "job" / "output"
    assert spec.user_hyperparameters["model_dir"] == str(tmp_path / "a b%20c" / "jobs" / "job" / "model")


def test_a_channel_named_as_the_models_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is already used for model_uri"):
        build(Settings(model_uri="/model"), {"model": "/data"})


def test_options_carry_what_the_request_cannot() -> None:
    given = RunOptions(stop_grace=3)
    options = request_builder.build_options(Settings(framework_version="2.21", py_version="py311", run_options=given))
    assert (options.backend, options.framework_version, options.py_version) == ("local_process", "2.21", "py311")
    assert options.run_options == given


def test_the_hosts_are_told_what_to_fail_for() -> None:
    def own(**settings: Any) -> set[str]:
        found = build(Settings(**settings))["HyperParameters"]
        return {name for name in found if name in (codec.ON_UNDISTRIBUTED, codec.ON_NAN)}

    options = RunOptions(on_undistributed="fail", on_nan="fail")
    assert own(run_options=RunOptions(), distribution=MPI()) == set()
    assert own(run_options=options) == set()
    assert own(run_options=options, distribution=MPI()) == {codec.ON_UNDISTRIBUTED}
    there = {"instance_type": "ml.m5.xlarge", "role": "arn:aws:iam::111122223333:role/x"}
    assert own(run_options=options, distribution=MPI(), **there) == {codec.ON_UNDISTRIBUTED, codec.ON_NAN}
