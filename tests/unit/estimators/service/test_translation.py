"""What a client's request becomes on this machine, and what it may not ask for."""

from __future__ import annotations

from typing import Any

import pytest
import unserved

from container.contract.strategies import TorchDistributed
from estimators.job.errors import ConfigurationError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.service import translation
from estimators.service.errors import ServiceError
from estimators.service.models import Model
from estimators.service.translation import Local, translate

REQUEST: dict[str, Any] = {
    **unserved.REQUEST,
    "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
    "HyperParameters": {"sagemaker_program": '"train.py"', "name": '"a b"', "plain": "x: y"},
}


def with_member(path: str, value: Any) -> dict[str, Any]:
    first, _, second = path.partition(".")
    return {**REQUEST, first: {**REQUEST.get(first, {}), second: value} if second else value}


def refusal(request: dict[str, Any], local: Local | None = None) -> str:
    with pytest.raises(ServiceError) as caught:
        translate(request, local or Local())
    assert caught.value.code == "ValidationException"
    return caught.value.message


def test_a_job_keeps_everything_but_where_it_runs() -> None:
    spec, options = translate(REQUEST, Local(python="/usr/bin/python3"))
    assert options == JobOptions(backend="local_process", python="/usr/bin/python3", asked_instance_type="ml.m5.xlarge")
    assert spec.instance_type == "local_process"
    local = {**REQUEST["ResourceConfig"], "InstanceType": "local_process"}
    assert spec == TrainingJobSpec.from_request({**REQUEST, "ResourceConfig": local})
    assert spec.hyperparameters == REQUEST["HyperParameters"]


def test_a_refusal_advises_what_helps() -> None:
    entry_point = refusal(with_member("AlgorithmSpecification.ContainerEntrypoint", ["python"]))
    assert "--backend docker" in entry_point and "--without" not in entry_point
    network = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert "--without" in (said := refusal(with_member("VpcConfig", network))) and "--backend docker" not in said


@pytest.mark.parametrize("member", sorted(translation.REFUSED) + sorted(translation.REFUSED_FOR_PROCESSES))
def test_what_only_aws_has_is_refused_by_name(member: str) -> None:
    assert member in refusal(with_member(member, {"Some": "thing"}))
    for nothing in (None, False, "", [], {"EnableIt": False}):
        assert not translation._asked_for(with_member(member, nothing), member)


def test_members_that_are_named_are_left_out_on_request() -> None:
    request = with_member("VpcConfig", {"Subnets": ["s"], "SecurityGroupIds": ["g"]})
    spec, options = translate(request, Local(without=frozenset({"VpcConfig", "OutputDataConfig.KmsKeyId"})))
    assert spec.vpc is None
    assert options.warnings == ("VpcConfig was requested, but the job runs without it.",)
    with pytest.raises(ConfigurationError, match="Did you mean 'VpcConfig'"):
        Local(without=frozenset({"VpcConfg"}))


def test_the_tables_name_members_of_the_model() -> None:
    shapes = Model("sagemaker", ["CreateTrainingJob"]).shapes
    tables = (*translation.REFUSED, *translation.REFUSED_FOR_PROCESSES)
    for path in tables:
        shape = "CreateTrainingJobRequest"
        for part in path.split("."):
            shape = shapes[shape]["members"][part]["shape"]


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"sagemaker_pytorch_xla_multi_worker_enabled": "true"}, "PyTorch/XLA is not available"),
        ({"sagemaker_distributed_dataparallel_enabled": "true"}, "smdistributed's data parallel library"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_parameter_server_enabled": "true"}, "several strategies"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "0"}, "from 1 to 1,024"),
        ({"a": "b\0"}, "NUL"),
    ],
)
def test_hyperparameters_that_cannot_be(hyperparameters: dict[str, str], message: str) -> None:
    request = {**REQUEST, "HyperParameters": {**REQUEST["HyperParameters"], **hyperparameters}}
    assert message in refusal(request)


@pytest.mark.parametrize("name", ["sagemaker_torch_distributed_enabled", "sagemaker_pytorch_ddp_enabled"])
def test_pytorchs_strategies_are_started_as_torchrun_starts(name: str) -> None:
    spec, _ = translate({**REQUEST, "HyperParameters": {**REQUEST["HyperParameters"], name: "true"}}, Local())
    assert spec.strategy == TorchDistributed()


def test_other_refusals_say_why() -> None:
    drivers = {name: value for name, value in REQUEST.items() if name != "HyperParameters"}
    assert "--backend docker" in refusal(drivers)
    assert "TrainingImage is missing" in refusal({**REQUEST, "AlgorithmSpecification": {"TrainingInputMode": "File"}})
    assert "InstanceType is missing" in refusal({**REQUEST, "ResourceConfig": {}})
    metrics = [{"Name": "loss", "Regex": "("}]
    assert "not valid" in refusal(with_member("AlgorithmSpecification.MetricDefinitions", metrics))
    assert "NONE" in refusal(with_member("OutputDataConfig.CompressionType", "NONE"))
    assert "max_wait" in refusal(with_member("StoppingCondition.MaxWaitTimeInSeconds", 5))
    assert "SM_CHECKPOINT_DIR" in refusal({**REQUEST, "CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/x"}})


def test_code_is_not_read_from_the_machines_own_folders() -> None:
    """The endpoint's process reads archives in its own buckets only; a path is one in a container, as on SageMaker."""
    for place in ("/etc", "file:///etc", "etc", "/opt/ml/input/data/code/sourcedir.tar.gz"):
        code = {**REQUEST["HyperParameters"], "sagemaker_submit_directory": place}
        assert f"{place!r} is a path in a container" in refusal({**REQUEST, "HyperParameters": code})


def test_images_and_types_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Local(backend="docker", images=(("*/mine:*", "mine:here"),))
    aws = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu-py310"
    assert local.image(aws) == "fleetfit-training"
    assert local.image("1.dkr.ecr.us-east-1.amazonaws.com/mine:4") == "mine:here"
    assert local.image("other:1") == "other:1"
    assert Local(backend="docker", images=(("*", "all:1"),)).image(aws) == "all:1"
    monkeypatch.setattr(translation, "gpu_count", lambda: 0)
    assert [local.instance_type(name) for name in ("ml.m5.xlarge", "ml.p3.2xlarge", "local")] == ["local"] * 3
    monkeypatch.setattr(translation, "gpu_count", lambda: 2)
    assert [local.instance_type(name) for name in ("ml.m5.xlarge", "ml.p3.2xlarge")] == ["local", "local_gpu"]
    with pytest.raises(ConfigurationError, match="Did you mean 'docker'"):
        Local(backend="dokcer")


def test_gpus_that_are_not_there_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "gpu_count", lambda: 0)
    _, options = translate(with_member("ResourceConfig.InstanceType", "ml.p3.8xlarge"), Local())
    assert options.warnings == ("ml.p3.8xlarge has 4 GPU(s), but this machine has none: the job runs on CPUs.",)
