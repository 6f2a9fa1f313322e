"""Values whose names look secret are hidden wherever a job is shown."""

from __future__ import annotations

import json

from estimators.job.secrets import MASK, mask_mapping, mask_request, mask_value


def test_secret_names_hide_their_values() -> None:
    assert mask_mapping({"API_TOKEN": "abc", "EPOCHS": "3", "db-password": "x"}) == {
        "API_TOKEN": MASK,
        "EPOCHS": "3",
        "db-password": MASK,
    }


def test_empty_secrets_are_shown_empty() -> None:
    assert mask_value("API_TOKEN", "") == ""


def test_everyday_hyperparameters_are_not_secrets() -> None:
    values = {"max_tokens": "5", "tokenizer": "bpe", "monkey": "x", "keyboard": "y"}
    assert mask_mapping(values) == values


def test_json_is_looked_into() -> None:
    shown = mask_value("SM_HPS", json.dumps({"api-key": "abc", "epochs": 3}))
    assert "abc" not in shown
    assert json.loads(shown)["epochs"] == 3
    nested = mask_value("SM_TRAINING_ENV", json.dumps({"hyperparameters": {"password": "abc"}, "user_args": []}))
    assert "abc" not in nested
    arguments = mask_value("SM_USER_ARGS", json.dumps(["--password", "abc", "--epochs", "3"]))
    assert json.loads(arguments) == ["--password", MASK, "--epochs", "3"]


def test_options_in_a_text_are_looked_into() -> None:
    assert mask_value("custom_mpi_options", "-x API_KEY=abc  --verbose") == f"-x API_KEY={MASK}  --verbose"
    assert mask_value("options", "--password abc -v") == f"--password {MASK} -v"
    assert mask_value("note", "the epoch took 3 s, loss=0.5") == "the epoch took 3 s, loss=0.5"


def test_requests_keep_sagemakers_own_names() -> None:
    request = {
        "TrainingJobName": "job",
        "RoleArn": "arn",
        "HyperParameters": {"secret": '"x"', "epochs": "3"},
        "Environment": {"AWS_SECRET_ACCESS_KEY": "x"},
    }
    assert mask_request(request) == {
        "TrainingJobName": "job",
        "RoleArn": "arn",
        "HyperParameters": {"secret": MASK, "epochs": "3"},
        "Environment": {"AWS_SECRET_ACCESS_KEY": MASK},
    }
    assert request["HyperParameters"]["secret"] == '"x"'
