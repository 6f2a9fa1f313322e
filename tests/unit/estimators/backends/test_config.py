"""What a host finds under /opt/ml/input/config."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from container.contract.environment import Environment, Machine
from container.contract.layout import MLTree
from estimators.backends.config import BackendFacts, host_config, input_mode
from estimators.backends.local import channel_refusal
from estimators.job.inputs import TrainingInput, parse_inputs
from estimators.job.request import Algorithm, CheckpointConfig, Resources, TrainingJobSpec

SPEC = TrainingJobSpec(
    name="job",
    algorithm=Algorithm(input_mode="Pipe"),
    hyperparameters={"epochs": "3", "text": '"a b"', "raw": "x", "model_dir": '"/opt/ml/model"'},
    inputs=parse_inputs(
        {"train": TrainingInput("/a", content_type="text/csv"), "test": TrainingInput("/b", input_mode="File")}
    ),
    resources=Resources(instance_type="local_process", instance_count=12),
    environment={"A": "b"},
)


def test_every_host_reads_itself() -> None:
    config = host_config(SPEC, "algo-11")
    hosts = list(SPEC.hosts)
    group = {"instance_group_name": "homogeneousCluster", "instance_type": "local_process", "hosts": hosts}
    assert config.hyperparameters == SPEC.hyperparameters
    assert config.resource_config == {
        "current_host": "algo-11",
        "current_instance_type": "local_process",
        "current_group_name": "homogeneousCluster",
        "hosts": hosts,
        "instance_groups": [group],
        "network_interface_name": "lo",
    }
    common = {"S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    assert config.input_data_config == {
        "train": {**common, "TrainingInputMode": "Pipe", "ContentType": "text/csv"},
        "test": {**common, "TrainingInputMode": "File"},  # the channel's is over the job's
    }
    arn = "arn:aws:sagemaker:local:000000000000:training-job/job"
    assert config.environment == {"A": "b", "TRAINING_JOB_NAME": "job", "TRAINING_JOB_ARN": arn}
    assert config.checkpoint_config is None


def test_a_backend_may_say_what_the_hosts_are() -> None:
    facts = BackendFacts(network_interface="eth0", instance_type="ml.m5.large")
    config = host_config(SPEC, "algo-1", facts)
    assert config.resource_config["network_interface_name"] == "eth0"
    assert config.resource_config["current_instance_type"] == "ml.m5.large"


def test_checkpoints_are_configured_where_they_are_kept() -> None:
    spec = TrainingJobSpec(name="job", checkpoint=CheckpointConfig(uri="s3://b/c"))
    config = host_config(spec, "algo-1")
    assert config.checkpoint_config == {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/checkpoints"}


def test_unknown_hosts_are_named() -> None:
    with pytest.raises(ValueError, match="'algo-13' is not a host of the job; its hosts: algo-1, algo-2"):
        host_config(SPEC, "algo-13")


def test_a_channels_mode_is_over_the_jobs() -> None:
    assert [input_mode(SPEC, channel) for channel in SPEC.inputs] == ["Pipe", "File"]


def test_a_folder_with_the_name_of_a_fifo_is_refused() -> None:
    inputs = parse_inputs(
        {"train": "/a", **{name: TrainingInput("/b", input_mode="File") for name in ("train_1", "t_1", "train_01")}}
    )
    spec = dataclasses.replace(SPEC, inputs=inputs)
    refused = [channel_refusal(spec, channel) for channel in inputs]
    assert [name for name, text in zip(("train", "train_1", "t_1", "train_01"), refused, strict=True) if text] == [
        "train_1"
    ]
    assert "'train', which is in Pipe mode: train_0, train_1" in str(refused[1])


def test_the_files_are_what_the_toolkit_reads(tmp_path: Path) -> None:
    tree = MLTree(tmp_path)
    tree.config.mkdir(parents=True)
    for path, text in host_config(SPEC, "algo-2").files(tree).items():
        Path(path).write_text(text, encoding="utf-8")
    environment = Environment.from_config(
        base_dir=tmp_path,
        machine=Machine(python="python", cpus=2),
        hyperparameters=json.loads(tree.hyperparameters_file.read_text()),
        resource_config=json.loads(tree.resource_config_file.read_text()),
        input_data_config=json.loads(tree.input_data_config_file.read_text()),
    )
    assert environment.current_host == "algo-2"
    assert environment.hosts == SPEC.hosts
    assert environment.hyperparameters == {"epochs": 3, "text": "a b", "raw": "x", "model_dir": str(tree.model)}
