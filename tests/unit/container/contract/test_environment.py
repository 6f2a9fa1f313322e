"""A host's view of its job: what the files say, and the SM_* variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container.contract.environment import Environment, Machine, read_json_file
from container.contract.layout import MLTree, rebased
from container.contract.strategies import MPI

MACHINE = Machine(python="/venv/bin/python", cpus=4, gpus=1)


def environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "base_dir": "/base/ml",
        "machine": MACHINE,
        "hyperparameters": {
            "epochs": "3",
            "name": '"a b"',
            "model_dir": '"/opt/ml/model"',
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": '"s3://x/source.tar.gz"',
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "2",
        },
        "resource_config": {
            "current_host": "algo-2",
            "hosts": ["algo-10", "algo-2", "algo-1"],
            "network_interface_name": "eth7",
            "current_instance_type": "ml.c5.xlarge",
        },
        "input_data_config": {"train": {"TrainingInputMode": "File"}, "test": {}},
        "job_name": "job-1",
    }
    return Environment.from_config(**{**values, **changes})


def test_the_files_make_one_value() -> None:
    env = environment()
    assert env.hosts == ("algo-1", "algo-2", "algo-10")
    assert (env.master, env.is_master, env.current_host) == ("algo-1", False, "algo-2")
    assert env.program == "train.py"
    assert env.strategy == MPI(processes_per_host=2)
    assert env.hyperparameters == {"epochs": 3, "name": "a b", "model_dir": "/base/ml/model"}
    assert env.network_interface == "eth7"


def test_variables_are_those_of_sagemakers_toolkit() -> None:
    env = environment().to_env_vars()
    assert env["SM_CURRENT_HOST"] == "algo-2"
    assert env["SM_HOSTS"] == '["algo-1","algo-2","algo-10"]'
    assert env["SM_NETWORK_INTERFACE_NAME"] == "eth7"
    assert (env["SM_NUM_CPUS"], env["SM_NUM_GPUS"]) == ("4", "1")
    assert env["SM_MODEL_DIR"] == "/base/ml/model"
    assert env["SM_OUTPUT_DATA_DIR"] == "/base/ml/output/data"
    assert env["SM_INPUT_DIR"] == "/base/ml/input"
    assert env["SM_CHANNELS"] == '["test","train"]'
    assert env["SM_CHANNEL_TRAIN"] == "/base/ml/input/data/train"
    assert env["SM_HPS"] == '{"epochs":3,"model_dir":"/base/ml/model","name":"a b"}'
    assert (env["SM_HP_EPOCHS"], env["SM_HP_NAME"]) == ("3", "a b")
    assert env["SM_USER_ARGS"] == '["--epochs","3","--model_dir","/base/ml/model","--name","a b"]'
    assert env["SM_USER_ENTRY_POINT"] == "train.py"
    assert env["SM_MODULE_NAME"] == "train"
    assert env["SM_FRAMEWORK_PARAMS"] == ('{"sagemaker_mpi_enabled":true,"sagemaker_mpi_num_of_processes_per_host":2}')
    training = json.loads(env["SM_TRAINING_ENV"])
    assert training["hyperparameters"] == environment().hyperparameters
    assert training["channel_input_dirs"]["test"] == "/base/ml/input/data/test"
    assert training["job_name"] == "job-1" and training["is_master"] is False
    for name, value in env.items():
        assert name.startswith("SM_") or name in ("CURRENT_HOST", "SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION")
        assert "\0" not in value
    assert (env["CURRENT_HOST"], env["SAGEMAKER_JOB_NAME"]) == (env["SM_CURRENT_HOST"], "job-1")


def test_another_hosts_view_differs_in_its_name_only() -> None:
    mine, other = environment().to_env_vars(), environment().for_host("algo-1").to_env_vars()
    assert other["SM_CURRENT_HOST"] == "algo-1"
    assert {name for name in mine if mine[name] != other[name]} == {
        "CURRENT_HOST", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/opt/ml/model", "/base/ml/model"),
        ("/opt/ml", "/base/ml"),
        ("/opt/mlx/model", "/opt/mlx/model"),
        ("s3://bucket/opt/ml", "s3://bucket/opt/ml"),
        ("/opt/ml/output/data", "/base/ml/output/data"),
        ("--out=/opt/ml/model --log '/opt/ml/output'", "--out=/base/ml/model --log '/base/ml/output'"),
        ("/opt/ml/code:/opt/ml/input/data/lib", "/base/ml/code:/base/ml/input/data/lib"),
        ("file:///opt/ml/model", "file:///base/ml/model"),
        ("/mnt/opt/ml/model", "/mnt/opt/ml/model"),
        ("/opt/ml-data", "/opt/ml-data"),
        ("../opt/ml", "../opt/ml"),
        (["/opt/ml/model", {"x": "/opt/ml"}, 1, None], ["/base/ml/model", {"x": "/base/ml"}, 1, None]),
    ],
)
def test_opt_ml_in_any_hyperparameter_is_where_the_tree_is(given: Any, expected: Any) -> None:
    found = environment(hyperparameters={"model_dir": given, "output_dir": given}).hyperparameters
    assert (found["model_dir"], found["output_dir"]) == (expected, expected)


def test_checkpoints_below_opt_ml_are_the_folder_that_hosts_share(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "checkpoints").symlink_to("shared")
    found = rebased({"a": "/opt/ml/checkpoints/last", "b": "/opt/ml/checkpoints2"}, MLTree(tmp_path))
    assert found == {"a": f"{tmp_path}/shared/last", "b": f"{tmp_path}/checkpoints2"}


def test_what_does_not_fit_a_variable_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="SM_HPS would have 140011 characters"):
        environment(hyperparameters={"long": "x" * 140_000}).to_env_vars()


def test_the_summary_variable_gives_way() -> None:
    values = {f"value-{number}": "x" * 65_300 for number in range(2)}
    env = environment(hyperparameters=values)
    with pytest.raises(ValueError, match=r"SM_(HPS|USER_ARGS) would have"):
        environment(hyperparameters={**values, "third": "x" * 1000}).to_env_vars()
    assert "SM_TRAINING_ENV" not in env.to_env_vars()


@pytest.mark.parametrize("program", [None, '""'])
def test_a_job_without_an_entry_point(program: str | None) -> None:
    values = {} if program is None else {"sagemaker_program": program}
    with pytest.raises(ValueError, match="names no entry point"):
        _ = environment(hyperparameters=values).program


def test_a_host_that_is_not_one_of_the_hosts() -> None:
    with pytest.raises(ValueError, match="'algo-7' is not among hosts"):
        environment(resource_config={"current_host": "algo-7", "hosts": ["algo-1"]})


def test_files_are_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "resourceconfig.json"
    with pytest.raises(ValueError, match=r"resourceconfig\.json is missing"):
        read_json_file(path)
    assert read_json_file(path, {}) == {}
    path.write_text("{")
    with pytest.raises(ValueError, match=r"resourceconfig\.json is not valid JSON"):
        read_json_file(path, {})


def test_variables_that_name_the_entry_point_and_the_code() -> None:
    """As the training toolkit takes them; ``ENV SAGEMAKER_PROGRAM`` is how an image of one's own names its own."""
    alone = {"SAGEMAKER_PROGRAM": "own.py", "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/code"}
    env = environment(hyperparameters={}, user_environment=alone)
    assert env.program == env.to_env_vars()["SM_USER_ENTRY_POINT"] == "own.py"
    assert env.to_env_vars()["SM_MODULE_DIR"] == "/opt/ml/code"
    both = environment(user_environment=alone)
    assert both.program == "own.py"
    assert both.to_env_vars()["SM_MODULE_DIR"] == "s3://x/source.tar.gz"
    with pytest.raises(ValueError, match="'sagemaker_program', and the variable SAGEMAKER_PROGRAM is not set"):
        _ = environment(hyperparameters={}).program


def test_a_hyperparameter_without_a_name() -> None:
    """SageMaker takes it; its toolkit passes an empty word and the value."""
    env = environment(hyperparameters={"": "1", "a": "2"})
    assert env.to_cmd_args() == ["", "1", "-a", "2"]
    assert env.to_env_vars()["SM_HP_"] == "1"
