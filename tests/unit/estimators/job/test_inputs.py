"""Inputs have the SageMaker SDK's names and defaults, and become channels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from estimators.job.errors import ConfigurationError
from estimators.job.inputs import (
    FileSystemInput,
    ShuffleConfig,
    TrainingInput,
    model_channel,
    normalise_uri,
    parse_inputs,
)


def uri(channel: Any) -> str:
    return channel.source.s3.uri


@pytest.mark.parametrize("given", ["data", Path("data")])
def test_a_path_is_the_training_channel(given: Any) -> None:
    (channel,) = parse_inputs(given)
    assert channel.name == "training"
    assert uri(channel) == os.path.abspath("data")
    assert channel.to_request()["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "FullyReplicated"


def test_a_dict_names_the_channels() -> None:
    given = {"train": "/a", "validation": TrainingInput("s3://bucket/b"), "x": "file:///c"}
    channels = parse_inputs(given)
    assert [channel.name for channel in channels] == list(given)
    assert [uri(channel) for channel in channels] == ["/a", "s3://bucket/b", "file:///c"]


def test_nothing_is_no_channel() -> None:
    assert parse_inputs(None) == parse_inputs({}) == ()


def test_all_options_of_an_input_are_carried() -> None:
    given = TrainingInput(
        "s3://bucket/list", distribution="ShardedByS3Key", compression="Gzip", content_type="text/csv",
        record_wrapping="RecordIO", s3_data_type="AugmentedManifestFile", instance_groups=["group"], input_mode="Pipe",
        attribute_names=["image", "label"], shuffle_config=ShuffleConfig(7),
    )  # fmt: skip
    (channel,) = parse_inputs({"train": given})
    source = {
        "S3DataType": "AugmentedManifestFile", "S3Uri": "s3://bucket/list", "S3DataDistributionType": "ShardedByS3Key",
        "AttributeNames": ["image", "label"], "InstanceGroupNames": ["group"],
    }  # fmt: skip
    assert channel.to_request() == {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": source},
        "CompressionType": "Gzip",
        "ContentType": "text/csv",
        "RecordWrapperType": "RecordIO",
        "InputMode": "Pipe",
        "ShuffleConfig": {"Seed": 7},
    }


def test_file_systems_are_carried() -> None:
    (channel,) = parse_inputs(FileSystemInput("fs-12345678", "EFS", "/data", content_type="text/csv"))
    system = {"FileSystemId": "fs-12345678", "FileSystemType": "EFS"}
    source = {**system, "DirectoryPath": "/data", "FileSystemAccessMode": "ro"}
    assert channel.to_request()["DataSource"] == {"FileSystemDataSource": source}


def test_the_sdks_own_inputs_are_taken() -> None:
    class SdkInput:
        config = {"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "file:///x"}}}  # noqa: RUF012

    (channel,) = parse_inputs({"train": SdkInput()})
    assert uri(channel) == "file:///x"


def test_a_model_is_a_channel() -> None:
    channel = model_channel("/models/m.tar.gz", "model")
    assert channel.input_mode == "File"
    assert channel.content_type == "application/x-sagemaker-model"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TrainingInput("x", distribution="Sharded"), "unknown TrainingInput(distribution=…) 'Sharded'"),
        (lambda: TrainingInput("x", input_mode="pipe"), "Did you mean 'Pipe'?"),
        (lambda: TrainingInput("x", target_attribute_name="y"), "AutoML"),
        (lambda: TrainingInput("x", shuffle_config=3), "must be a ShuffleConfig(seed), got 3"),
        (lambda: ShuffleConfig("a"), "must be a whole number from 0 to 9,223,372,036,854,775,807, got 'a'"),
        (lambda: FileSystemInput("fs-1", "NFS", "/x"), "unknown FileSystemInput(file_system_type=…) 'NFS'"),
        (lambda: FileSystemInput("fs-1", "EFS", "/x", "rx"), "Allowed: 'ro', 'rw'"),
        (lambda: parse_inputs(3), "channel 'training' is 3"),
        (lambda: parse_inputs({"a": ["x"]}), "channel 'a' is ['x']"),
        (lambda: parse_inputs({1: "x"}), "name of a channel must be a string, got 1"),
        (lambda: normalise_uri("file://relative"), "a file:// URI needs an absolute path"),
        (lambda: normalise_uri(""), "the location of the data is empty"),
        (lambda: normalise_uri("a\0b"), "data: a NUL character"),
    ],
)
def test_mistakes_are_named(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value)


def test_uris_are_made_plain() -> None:
    assert normalise_uri("~/x") == os.path.expanduser("~/x")
    assert normalise_uri("file://localhost/x") == "file:///x"
    assert normalise_uri("s3://b/p") == "s3://b/p"
