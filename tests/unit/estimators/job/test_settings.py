"""Mistakes in arguments are refused in the constructor, by a message with the value, what is allowed and a remedy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from container.contract.strategies import MPI, CollectiveAllReduce, Mirrored, ParameterServer
from estimators import FailurePolicy, RunOptions, TensorFlow
from estimators.faults import SpotMarket
from estimators.job.errors import ConfigurationError
from estimators.job.settings import Settings

SCRIPT, ML = {"entry_point": "t.py"}, {"instance_type": "ml.p3.2xlarge"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({**SCRIPT, "arguments": "--fp16"}, "arguments must be a list, or None, got '--fp16'. Write ['--fp16']."),
        ({**SCRIPT, "arguments": ["--layers", 64]}, "got 64 in it. Write '64'."),
        ({**SCRIPT, "arguments": ["a\0"]}, "NUL"),
        ({**SCRIPT, "arguments": [10**5000]}, "arguments must be a list of strings, got"),
        ({**SCRIPT, "arguments": ["x" * 3000]}, "3004 characters as JSON; SageMaker takes at most 2500"),
        ({"entry_point": print, "arguments": ["x"]}, "entry_point is a function"),
        ({"image_uri": "x", "arguments": ["x"]}, "or use container_arguments"),
        (
            {**SCRIPT, "hyperparameters": {"lr": 0.5}, "arguments": ["--lr", "0.1"]},
            "--lr in arguments has no value, or a value that differs from hyperparameter 'lr'. Set the option either",
        ),
        ({"instance_count": 0}, "instance_count must be a whole number from 1 to 1,024, got 0."),
        ({"instance_count": 2.0}, "got 2.0. Write 2."),
        ({"instance_count": 1.5}, "got 1.5."),
        ({"instance_count": "2"}, "got '2'"),
        ({"instance_count": True}, "got True"),
        ({"instance_count": None}, "got None"),
        ({"max_run": 0}, "max_run must be a whole number from 1 to 315,360,000, got 0."),
        ({"max_run": math.inf}, "got inf"),
        ({"volume_size": 0}, "volume_size must be"),
        ({"hang_timeout": 0}, "hang_timeout must be a number of seconds above 0"),
        ({"hang_timeout": "soon"}, "hang_timeout must be a number of seconds above 0"),
        ({"instance_type": "local_proces"}, "Did you mean 'local_process'?"),
        ({"instance_type": "ml.p3.2xlarg"}, "Did you mean 'ml.p3.2xlarge'?"),
        ({"instance_type": "gpu"}, "unknown instance_type 'gpu'"),
        ({"instance_type": None}, "instance_type must be a string"),
        ({"input_mode": "file"}, "Did you mean 'File'?"),
        ({"distribution": {"mpii": {"enabled": True}}}, "unknown distribution 'mpii'. Did you mean 'mpi'?"),
        ({"distribution": {"mpi": {"enable": True}}}, "Did you mean 'enabled'?"),
        ({"distribution": {"mpi": {"enabled": True, "processes_per_host": 0}}}, "from 1 to 1,024, got 0"),
        ({"distribution": {"mpi": {"enabled": True}, "parameter_server": {"enabled": True}}}, "one strategy at a time"),
        ({"distribution": {"smdistributed": {}}}, "'smdistributed' is not available"),
        ({"distribution": "mpi"}, "distribution must be a strategy"),
        ({"distribution": Mirrored(), "instance_count": 2}, "Mirrored() is for one host"),
        (
            {"distribution": Mirrored(devices=9), "instance_type": "ml.p3.16xlarge"},
            "Mirrored(devices=9) is more than the 8 GPUs of ml.p3.16xlarge",
        ),
        ({"hyperparameters": {"sagemaker_program": "x"}}, "reserved"),
        ({"hyperparameters": {"fleetfit_x": "x"}}, "reserved"),
        ({"hyperparameters": {"x": object()}}, "a value of type object cannot be passed"),
        ({"hyperparameters": {"x": math.nan}}, "has no JSON form"),
        ({"hyperparameters": {"x": {1: 2}}}, "the keys of a dict must be strings; got 1"),
        ({"hyperparameters": {"x": "a\0"}}, "NUL"),
        ({"hyperparameters": {"a=b": 1}}, "a name cannot have '='"),
        ({"hyperparameters": {"": 1}}, "a name must be a string"),
        ({"hyperparameters": {3: 1}}, "a name must be a string that is not empty, got 3"),
        ({"hyperparameters": {"x" * 257: 1}}, "at most 256 characters"),
        ({"hyperparameters": {"x": "a" * 2499}}, "has 2501 characters as JSON; SageMaker takes at most 2500"),
        ({"hyperparameters": {f"p{n}": n for n in range(101)}}, "101 hyperparameters are given"),
        ({"hyperparameters": [("a", 1)]}, "hyperparameters must be a dict"),
        ({"environment": {"A=B": "x"}}, "'A=B' is not a valid variable name"),
        ({"environment": {"1A": "x"}}, "'1A' is not a valid variable name"),
        ({"environment": {"A": "x\0"}}, "NUL"),
        ({"environment": {"A": 3}}, "environment['A'] must be a string, got 3. Write '3'."),
        ({"environment": "A=B"}, "environment must be a dict"),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss: ("}]}, "is not valid: missing )"),
        ({"metric_definitions": "loss"}, "must be a list"),
        ({"dependencies": "lib"}, "dependencies must be a list, got 'lib'. Write ['lib']."),
        ({"dependencies": [3]}, "dependencies must be a list of strings, got 3"),
        ({"tags": "x"}, "tags must be"),
        ({"tags": [{"Key": "a"}]}, "tags: each tag must be"),
        ({"tags": {"a": 3}}, "tags: each tag must be"),
        ({"base_job_name": "a_b"}, "base_job_name 'a_b'"),
        ({"base_job_name": "-a"}, "base_job_name '-a'"),
        ({"sagemaker_session": "us-east-1"}, "sagemaker_session must be a boto3 session"),
        ({"subnets": ["s"]}, "security_group_ids is missing"),
        ({"security_group_ids": ["s"]}, "subnets is missing"),
        ({"model_dir": True}, "model_dir must be a path, or False (to leave it out), or None, got"),
        ({"container_log_level": "INFO"}, "container_log_level must be a whole number"),
        ({"use_spot_instances": 1}, "use_spot_instances must be True or False"),
        ({"entry_point": 3}, "entry_point must be a string"),
        ({"output_path": "file://x"}, "a file:// URI needs an absolute path"),
        ({"run_options": {}}, "run_options must be a RunOptions"),
        ({"max_wait": 90000}, "also set use_spot_instances=True"),
        ({**ML, "max_wait": 90000}, "also set use_spot_instances=True"),
        ({"max_wait": 60, "use_spot_instances": True}, "max_wait=60 is less than max_run=86400"),
        ({**ML, "max_wait": 60, "use_spot_instances": True}, "max_wait=60 is less than max_run=86400"),
        ({"max_retry_attempts": 31}, "max_retry_attempts must be a whole number from 1 to 30, or None, got 31."),
        ({"max_retry_attempts": 0}, "max_retry_attempts must be a whole number from 1 to 30, or None, got 0"),
        (
            {"max_retry_attempts": 2, "run_options": RunOptions(failure_policy=FailurePolicy(max_failures=3))},
            "both set the number of restarts. Leave one of these options out",
        ),
        (
            {"instance_count": 2, "run_options": RunOptions(failure_policy=FailurePolicy(min_hosts=3))},
            "FailurePolicy(min_hosts=3) is more than instance_count=2",
        ),
        ({"run_options": RunOptions(spot_market=SpotMarket(rate=1))}, "also set use_spot_instances=True, or interrupt"),
        ({**ML, "distribution": MPI(processes_per_host=2)}, "=2 is more than the 1 slots of ml.p3.2xlarge (1 GPUs)"),
        (
            {"instance_type": "ml.m5.xlarge", "distribution": CollectiveAllReduce(processes_per_host=5)},
            "more than the 4 slots of ml.m5.xlarge (4 vCPUs)",
        ),
    ],
)
def test_mistakes_are_refused_in_the_constructor(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        TensorFlow(**arguments)
    assert said in str(caught.value)


def test_a_class_for_a_strategy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give an instance"):
        TensorFlow(distribution=MPI)


def test_defaults_are_the_sdks() -> None:
    sdks = {"max_run": 86400, "volume_size": 30, "input_mode": "File", "container_log_level": 20, "instance_count": 1}
    ours = {"model_channel_name": "model", "instance_type": "local_process"}
    assert {name: getattr(Settings(), name) for name in (*sdks, *ours)} == {**sdks, **ours}


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        (None, None),
        ({}, None),
        ({"mpi": {"enabled": False}}, None),
        ({"mpi": {"enabled": True, "processes_per_host": 2}}, MPI(processes_per_host=2)),
        ({"parameter_server": {"enabled": True}}, ParameterServer(cluster_spec="sagemaker")),
        (MPI(processes_per_host=3), MPI(processes_per_host=3)),
    ],
)
def test_distributions_are_read(given: Any, strategy: Any) -> None:
    assert Settings(distribution=given).distribution == strategy


def test_paths_lists_and_dicts_are_made_plain() -> None:
    settings = Settings(entry_point=Path("train.py"), dependencies=[Path("a"), "b"], tags={"a": "b"})
    assert settings.entry_point == "train.py" and settings.dependencies == ("a", "b")
    assert settings.tags[0].to_request() == {"Key": "a", "Value": "b"}
    nothing = Settings(hyperparameters=None, environment=None)
    assert nothing.hyperparameters == nothing.environment == {}


def test_the_region_is_the_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert Settings().region is None
    assert Settings(sagemaker_session=boto3.Session(region_name="eu-west-1")).region == "eu-west-1"

    class SageMakerSession:
        boto_region_name = "us-west-2"

    assert Settings(sagemaker_session=SageMakerSession()).region == "us-west-2"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert Settings().region == "eu-north-1"


def test_setting_an_attribute_checks_it() -> None:
    estimator = TensorFlow(entry_point="train.py")
    estimator.instance_count = 4
    assert estimator.instance_count == 4
    with pytest.raises(ConfigurationError, match="instance_count must be"):
        estimator.instance_count = 0
    assert estimator.instance_count == 4
    estimator.distribution = {"mpi": {"enabled": True}}
    assert estimator.distribution == MPI()
    estimator.run_options = RunOptions(stop_grace=1)
    assert estimator.settings.run_options.stop_grace == 1


def test_a_variable_that_is_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"environment\['A'\] must be a string, got a value of type int\.$"):
        TensorFlow(entry_point="train.py", instance_type="local_process", environment={"A": 10**5000})  # type: ignore[dict-item]
