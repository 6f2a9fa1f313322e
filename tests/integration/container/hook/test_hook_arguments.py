"""What the hook tells of arguments that a script's argparse drops, or takes for something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hooked import Run, script

PARSER = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", "-b", type=int, default=8)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--bf16", type=bool, default=False)
parser.add_argument("--cache", action="store_false")
parser.add_argument("--model_dim", type=int)
parser.add_argument("--rate_1")
parser.add_argument("--flag", type=lambda text: text == "True")
"""


def told(folder: Path, arguments: list[str], text: str = "parser.parse_known_args()") -> list[str]:
    run = Run([*script(folder, PARSER + text), *arguments], folder, env={"SM_USER_ARGS": json.dumps(arguments)})
    assert run.code == 0, run.err
    return [event["data"]["message"] for event in run.events if event["kind"] == "warning"]


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
        # These are as they were meant.
        (["--bf16", "True", "--fp16", "True", "--cache", "False", "--flag", "False"], ""),
        (["--bf16", ""], ""),
        (["--model_dir", "/opt/ml/model", "--epochs", "3"], ""),
        (["--train-batch-size", "1", "--train_batch_size", "2"], ""),
        (["--train-batch-size=1", "--train_batch_size=2"], ""),
        (["--rate_2", "1", "--flag", "True"], ""),  # and the parser has --rate_1
        (["--", "inner.py", "--train-batch-size", "1"], ""),
    ],
)
def test_what_is_told(arguments: list[str], part: str, tmp_path: Path) -> None:
    found = told(tmp_path, arguments)
    assert (len(found) == 1 and part in found[0]) if part else found == []


def test_a_parser_that_takes_all_says_itself_what_it_does_not_know(tmp_path: Path) -> None:
    assert len(told(tmp_path, ["--bf16", "False"], "parser.parse_args()")) == 1
    line = script(tmp_path, PARSER + "parser.parse_args()")
    run = Run([*line, "--fp1", "--trainbatchsize", "1"], tmp_path, env={"SM_USER_ARGS": '["--trainbatchsize","1"]'})
    assert run.code == 2 and "unrecognized arguments: --trainbatchsize" in run.err and run.events == []


def test_what_another_parser_takes_is_not_left_over(tmp_path: Path) -> None:
    second = """
parser.parse_known_args()
_, rest = parser.parse_known_args()
other = argparse.ArgumentParser()
other.add_argument("--train-batch-size")
other.parse_args(rest)
"""
    assert told(tmp_path, ["--train-batch-size", "1"], second) == []
    twice = "parser.parse_known_args(); parser.parse_known_args()"
    assert len(told(tmp_path, ["--train-batch-size", "1", "--bf16", "no"], twice)) == 2


def test_intermixed_arguments_are_the_parsers_own_affair(tmp_path: Path) -> None:
    text = "parser.add_argument('n'); parser.parse_intermixed_args()"
    assert told(tmp_path, ["--fp16", "0"], text) == []


def test_other_lines_are_not_looked_at(tmp_path: Path) -> None:
    assert told(tmp_path, [], "parser.parse_known_args(['--bf16', 'False'])") == []
    line = script(tmp_path, PARSER + "parser.parse_known_args()")
    assert Run([*line, "--bf16", "False"], tmp_path).events == []  # not the job's


def test_a_module_of_the_scripts_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("WORD = 'mine'\n")
    run = Run(script(tmp_path, "import argparse; print(argparse.WORD)"), tmp_path)
    assert (run.code, run.out) == (0, "mine\n")
    (tmp_path / "argparse.py").write_text("WORD = 'mine'\nclass ArgumentParser: pass\n")
    run = Run(script(tmp_path, "import argparse; print(argparse.WORD)"), tmp_path)
    assert (run.code, run.out) == (0, "mine\n")
