"""What the hook tells of arguments that a script's argparse drops, or takes for something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hooked import Run, script

PARSER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--bf16", type=bool, default=False)
"""
OTHER_PARSER = """
parser.parse_known_args()
_, rest = parser.parse_known_args()
other = argparse.ArgumentParser()
other.add_argument("--train-batch-size")
other.parse_args(rest)
"""


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        ("parser.parse_args()", ["--bf16", "False"], 1),
        ("parser.parse_known_args(); parser.parse_known_args()", ["--train-batch-size", "1", "--bf16", "no"], 2),
        (OTHER_PARSER, ["--train-batch-size", "1"], 0),  # what another parser takes is not left over
        ("parser.add_argument('n'); parser.parse_intermixed_args()", ["--fp16", "0"], 0),
        ("parser.parse_known_args(['--bf16', 'False'])", [], 0),  # not the job's
    ],
)
def test_each_remark_is_told_once(text: str, arguments: list[str], told: int, tmp_path: Path) -> None:
    env = {"SM_USER_ARGS": json.dumps(arguments)}
    run = Run([*script(tmp_path, PARSER + text), *arguments], tmp_path, env=env)
    assert run.code == 0, run.err
    assert [event["kind"] for event in run.events] == ["warning"] * told


def test_a_parser_that_takes_all_says_itself_what_it_does_not_know(tmp_path: Path) -> None:
    line = script(tmp_path, PARSER + "parser.parse_args()")
    run = Run([*line, "--fp1", "--trainbatchsize", "1"], tmp_path, env={"SM_USER_ARGS": '["--trainbatchsize","1"]'})
    assert run.code == 2 and "unrecognized arguments: --trainbatchsize" in run.err and run.events == []


@pytest.mark.parametrize("text", ["WORD = 'mine'\n", "WORD = 'mine'\nclass ArgumentParser: pass\n"])
def test_a_module_of_the_scripts_of_that_name_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text(text)
    run = Run(script(tmp_path, "import argparse; print(argparse.WORD)"), tmp_path)
    assert (run.code, run.out) == (0, "mine\n")
