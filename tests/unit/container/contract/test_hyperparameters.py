"""Hyperparameters keep their types there and back; arguments and variables follow SageMaker's training toolkit."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract import hyperparameters

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(TEXT.filter(bool), JSON, max_size=6))
def test_every_value_keeps_its_type_there_and_back(values: dict[str, Any]) -> None:
    encoded = hyperparameters.encode(values)
    assert all(isinstance(text, str) for text in encoded.values())
    assert hyperparameters.decode(encoded) == values
    for name, value in values.items():
        assert type(hyperparameters.decode(encoded)[name]) is type(value)


@given(TEXT)
def test_plain_texts_of_other_clients_are_taken_as_they_are(text: str) -> None:
    """The SageMaker SDK 3.x sends ``adam``, not ``"adam"``."""
    decoded = hyperparameters.decode_value(text)
    try:
        expected = json.loads(text)
    except ValueError:
        expected = text
    assert decoded == expected or decoded != decoded


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "no JSON form"),
        (float("inf"), "no JSON form"),
        ("a\0b", "NUL"),
        ("\ud800", "not valid Unicode"),
        ({1: "x"}, "must be strings"),
        (object(), "type object cannot be passed"),
        (b"x", "type bytes"),
        ([1, {2}], "type set"),
    ],
)
def test_values_that_would_not_arrive_are_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        hyperparameters.encode({"learning-rate": value})
    assert "'learning-rate'" in str(caught.value)


def test_numpy_scalars_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    encoded = hyperparameters.encode({"rate": numpy.float64(0.5), "epochs": numpy.int64(3), "flag": numpy.bool_(True)})
    assert encoded == {"rate": "0.5", "epochs": "3", "flag": "true"}


def test_reserved_names() -> None:
    for name in ("sagemaker_program", "sagemaker_anything", "fleetfit_x", "_tuning_objective_metric"):
        assert hyperparameters.is_reserved(name)
    for name in ("epochs", "model_dir", "sagemaker", "my_sagemaker_x"):
        assert not hyperparameters.is_reserved(name)


# The cases of sagemaker-training-toolkit's test/unit/test_mapping.py.


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        (
            {"model_dir": "/opt/ml/model", "batch-size": 25},
            ["--batch-size", "25", "--model_dir", "/opt/ml/model"],
        ),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, ["-a", "1", "-b", "2", "-c", "3", "-d", "4"]),
        ({"5": "five", "s": 1}, ["-5", "five", "-s", "1"]),
        ({"nothing": None}, ["--nothing", ""]),
        ({"s3_uri": "s3://x", "on": True}, ["--on", "True", "--s3_uri", "s3://x"]),
        ({"map": {"b": 2, "a": 1}}, ["--map", "a=1,b=2"]),
        ({"list": [1, "two"]}, ["--list", "[1, 'two']"]),
        # To argparse a number with an exponent is an option if it is negative.
        ({"lr": -1e-05, "up": 1e-05, "far": -1.5e22}, ["--far", "-15000000000000000000000", "--lr", "-0.00001", "--up",
                                                       "1e-05"]),
    ],
)  # fmt: skip
def test_command_line_arguments(values: dict[str, Any], expected: list[str]) -> None:
    assert hyperparameters.to_cmd_args(values) == expected


def test_negative_numbers_are_none_of_argparses_options() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--xx", type=float)
    for value in (-1e-05, -2.5e-300, -1e300, -0.0, -7.25):
        assert parser.parse_args(hyperparameters.to_cmd_args({"xx": value})).xx == value


def test_arguments_follow_and_name_a_hyperparameter_once() -> None:
    values = {"lr": 0.1, "epochs": 3, "v": 1}
    words = ["--fp16", "--lr=0.2", "-v", "2", "-0.5", "--", "x"]
    assert hyperparameters.to_cmd_args(values, words) == ["--epochs", "3", *words]
    inner = ["--", "inner.py", "--lr", "9"]
    assert hyperparameters.to_cmd_args(values, inner) == ["--epochs", "3", "--lr", "0.1", "-v", "1", *inner]
    assert hyperparameters.conflict(values, inner) is None
    assert hyperparameters.conflict({"key": "a"}, ["--key", "b"]) == (
        "--key in arguments has no value, or a value that differs from hyperparameter 'key'"
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": 1, "b": 2}, {"SM_A": "1", "SM_B": "2"}),
        ({"training_job_name": "x y"}, {"SM_TRAINING_JOB_NAME": "x y"}),
        ({"nothing": None, "yes": True}, {"SM_NOTHING": "", "SM_YES": "true"}),
        ({"hosts": ["b", "a"]}, {"SM_HOSTS": '["b","a"]'}),
        ({"hps": {"b": "ü", "a": None}}, {"SM_HPS": '{"a":null,"b":"\\u00fc"}'}),
    ],
)
def test_variables(values: dict[str, Any], expected: dict[str, str]) -> None:
    assert hyperparameters.to_env_vars(values) == expected
