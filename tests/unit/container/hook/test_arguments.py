"""What is remarked of arguments that a script's argparse drops, or takes for something else."""

from __future__ import annotations

import argparse
import json

import pytest
from hooked import hook_module


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", "-b", type=int, default=8)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--bf16", type=bool, default=False)
    parser.add_argument("--cache", action="store_false")
    parser.add_argument("--model_dim", type=int)
    parser.add_argument("--rate_1")
    parser.add_argument("--layers", nargs="+")
    parser.add_argument("--sizes", nargs="*", type=json.loads)
    parser.add_argument("--flag", type=lambda text: text == "True")
    return parser


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--train-batch-size", "1"], "no --train-batch-size, and returned it as unknown: did you mean --train_batch_"),
        (["--Train_Batch_Size=1"], "--Train_Batch_Size, and returned it as unknown: did you mean --train_batch_size?"),
        (["--train_batch_siz", "1", "--fp16"], ""),  # argparse takes a beginning of a name
        (["--trian_batch_size", "1"], "did you mean --train_batch_size?"),
        (["--bf16", "False"], "--bf16 False is True in the script: its parser has type=bool"),
        (["--bf16=0"], "--bf16 0 is True in the script"),
        (["--fp16", "False"], "takes no value for it (store_true)"),
        (["--layers", "['a', 'b']"], "--layers ['a', 'b'] is a single text in the script, whose parser takes several"),
        # These are as they were meant.
        (["--layers", "a", "[b]", "--sizes", "[1, 2]"], ""),
        (["--layers", "[CLS]"], ""),
        (["--bf16", "True", "--fp16", "True", "--cache", "False", "--flag", "False"], ""),
        (["--bf16", ""], ""),
        (["--model_dir", "/opt/ml/model", "--epochs", "3"], ""),
        (["--train-batch-size", "1", "--train_batch_size", "2"], ""),
        (["--train-batch-size=1", "--train_batch_size=2"], ""),
        (["--rate_2", "1", "--flag", "True"], ""),  # and the parser has --rate_1
        (["--", "inner.py", "--train-batch-size", "1"], ""),
    ],
)
def test_remarks(
    arguments: list[str], part: str, parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM_USER_ARGS", json.dumps(arguments))
    values, rest = parser.parse_known_args(arguments)
    found = [text for _, text in hook_module("_fleetfit_arguments").remarks(parser, arguments, vars(values), rest)]
    assert (len(found) == 1 and part in found[0]) if part else found == []


def test_what_is_not_of_the_job_is_not_remarked(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SM_USER_ARGS", raising=False)
    values, rest = parser.parse_known_args(["--bf16", "False"])
    assert not [*hook_module("_fleetfit_arguments").remarks(parser, ["--bf16", "False"], vars(values), rest)]
