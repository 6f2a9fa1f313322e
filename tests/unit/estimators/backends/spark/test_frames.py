"""What a DataFrame must have to be a channel."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.backends.spark.frames import problems_of
from estimators.inputs import TrainingInput
from estimators.job.errors import ConfigurationError


@pytest.mark.parametrize(
    "kind", ["bigint", "boolean", "float", "double", "string", "binary", "array<float>", "array<string>"]
)
def test_numbers_texts_and_arrays_of_them_are_features(kind: str) -> None:
    assert problems_of([("x", kind)], "tfrecord") == []


@pytest.mark.parametrize(
    ("columns", "file_format", "reason"),
    [
        ([], "parquet", "no columns"),
        ([("x", "int"), ("x", "int")], "parquet", "two columns 'x'"),
        ([("x", "void")], "parquet", "column 'x' is void; cast it"),
        ([("x", "map<string,int>")], "parquet", "make columns of it"),
        ([("x", "date")], "tfrecord", "column 'x' is date, which a feature of an Example cannot hold"),
        ([("x", "decimal(10,2)")], "tfrecord", "cast the column to a number"),
        ([("x", "array<array<float>>")], "tfrecord", "use format='parquet'"),
        ([("x", "struct<a:int>")], "tfrecord", "a feature of an Example cannot hold"),
    ],
)
def test_what_cannot_be_written_is_named(columns: list[tuple[str, str]], file_format: str, reason: str) -> None:
    [problem] = problems_of(columns, file_format)
    assert reason in problem


def test_parquet_takes_what_an_example_does_not() -> None:
    assert problems_of([("x", "date"), ("y", "struct<a:int>")], "parquet") == []


class Frame:
    """Looks like a DataFrame."""

    class sparkSession:
        """Looks like a session of another machine's."""

        class conf:
            """Has no settings."""

            @staticmethod
            def get(name: str, default: None) -> None:
                return default

        class sparkContext:
            """Is on a cluster."""

            master = "yarn"

    dtypes = (("x", "int"),)
    isStreaming = False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dataframe": [1, 2]}, "is not a DataFrame of Spark"),
        ({"format": "csv"}, r"format=….*'csv'.*tfrecord"),
        ({"shards": 0}, "shards=….*at least 1, got 0"),
        ({"shards": True}, "whole number"),
        ({}, "executors are on other machines. Set the session's spark.fleetfit.store"),
        ({"path": "s3://bucket/frames"}, "'s3://bucket/frames', which is not a folder"),
        ({"path": 5}, "5 is not a location of data"),
        ({"s3_data_type": "S3Prefix"}, "Leave s3_data_type= out"),
    ],
)
def test_arguments_that_are_wrong_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        TrainingInput.from_spark(**{"dataframe": Frame(), **arguments})
