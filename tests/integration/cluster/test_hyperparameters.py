"""Hyperparameters of every kind reach the script intact, as arguments and as variables."""

from __future__ import annotations

import json
from typing import Any

import clusters
import pytest

from estimators import MPI, TensorFlow

VALUES: dict[str, Any] = {
    "text": "plain",
    "empty": "",
    "spaces": "  two  words ",
    "quotes": """it's "quoted" `here` \\ and \\\\ there""",
    "shell": "$HOME ${PATH} $(id) ; rm -rf * | cat > x & ! # ~ ? [a-z] {b,c}",
    "lines": "one\ntwo\r\nthree\ttabbed\n",
    "unicode": "zażółć 学习 🚀 \u202e\u00a0",
    "digits": "007",
    "number-like": "1e3",
    "true-like": "true",
    "null-like": "null",
    "json-like": '{"a": [1, "b"]}',
    "dash": "--not-an-option",
    "equals": "a=b=c",
    "percent": "%s %d %%",
    "int": 3,
    "negative": -7,
    "big": 2**70,
    "float": 0.1,
    "small": 1e-30,
    "true": True,
    "false": False,
    "none": None,
    "list": [1, "two", 3.5, None, True, ["nested", {"k": "v w"}]],
    "empty-list": [],
    "dict": {"b": 2, "a": "x y", "n": None},
    "empty-dict": {},
    "with-dash": 1,
    "with.dot": 2,
    "with_underscore": 3,
    "with-all_of.them": "4",
    "x": "a one-letter name",
    "UPPER": "case stays",
}

SCRIPT = """
import json, os, sys
import aid
aid.mark(f"got-{aid.RANK}", json.dumps({"argv": sys.argv[1:], "environ": dict(os.environ)}))
"""


def expected_arguments() -> dict[str, str]:
    """Name with dashes -> text, by the rules of SageMaker's training toolkit (``mapping.py``, ``to_cmd_args``)."""

    def text(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, dict):
            return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        return str(value)

    return {("-" if len(name) == 1 else "--") + name: text(value) for name, value in VALUES.items()}


@pytest.mark.parametrize(("hosts", "processes"), [(1, None), (2, 2)])
def test_every_value_reaches_the_script_intact(hosts: int, processes: int | None, make: clusters.Make) -> None:
    clusters.fit(make(SCRIPT, hosts=hosts, processes=processes, hyperparameters=VALUES), logs=False)
    for rank in range(hosts * (processes or 1)):
        got = json.loads(make.marked(f"got-{rank}"))
        argv, environ = got["argv"], got["environ"]
        assert dict(zip(argv[::2], argv[1::2], strict=True)) == expected_arguments()
        assert argv[::2] == sorted(argv[::2], key=lambda word: word.lstrip("-"))
        assert json.loads(environ["SM_HPS"]) == VALUES
        assert json.loads(environ["SM_USER_ARGS"]) == argv
        assert json.loads(environ["SM_TRAINING_ENV"])["hyperparameters"] == VALUES
        for name, value in VALUES.items():
            variable = environ[f"SM_HP_{name.upper()}"]
            if isinstance(value, str):
                assert variable == value
            elif value is None:
                assert variable == ""
            else:
                assert json.loads(variable) == value


def test_a_shell_script_gets_them_intact(make: clusters.Make) -> None:
    text = "one\ntwo \"three\" $HOME `id` \\ 'four'"
    job = clusters.fit(
        make(
            "",
            processes=1,
            entry_point="go.sh",
            files={"go.sh": 'printf "%s" "$2" > "$MARKS/argument"\nprintf "%s" "$SM_HP_TEXT" > "$MARKS/variable"\n'},
            hyperparameters={"text": text},
        ),
        logs=False,
    )
    assert job.status == "Completed"
    assert (make.marks / "argument").read_text() == (make.marks / "variable").read_text() == text


def test_model_dir_is_passed_by_the_rules_of_the_sdk(make: clusters.Make) -> None:
    for processes, model_dir, expected in (
        (1, None, "{base}/model"),
        (None, None, "{output}/{job}/model"),
        (None, "/some/where", "/some/where"),
        (1, False, None),
    ):
        make.clear()
        output = make.folder / "out"
        job = clusters.fit(make(SCRIPT, processes=processes, model_dir=model_dir, output_path=str(output)), logs=False)
        argv = json.loads(make.marked("got-0"))["argv"]
        base = job.record.tree("algo-1").base
        wanted = expected.format(base=base, output=output, job=job.name) if expected else None
        given = argv[argv.index("--model_dir") + 1].removeprefix("file://") if "--model_dir" in argv else None
        assert given == wanted


def test_the_users_environment_reaches_the_script_and_ours_does_not(make: clusters.Make) -> None:
    values = {"MINE": "a 'b' \"c\"\nd $HOME", "EMPTY": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    clusters.fit(make(SCRIPT, hosts=2, processes=1, environment=values), logs=False)
    for rank in (0, 1):
        environ = json.loads(make.marked(f"got-{rank}"))["environ"]
        assert {name: environ.get(name) for name in values} == values
        ours = {name for name in environ if "TOKEN" in name or name.startswith("FLEETFIT_")}
        assert not ours & {
            "FLEETFIT_JOB_TOKEN", "FLEETFIT_CONTROL_FD", "FLEETFIT_CONTROL_ADDRESS", "FLEETFIT_LIFELINE_FD",
            "FLEETFIT_HOST_SOCKET", "FLEETFIT_PROCESS",
        }  # fmt: skip


def test_arguments_reach_the_script_as_they_are_behind_the_hyperparameters(make: clusters.Make) -> None:
    words = [
        "--fp16",
        "--layers",
        "64",
        "32",
        "--text",
        "a 'b' \n",
        "",
        "--shift=-1e-05",
        "--lr",
        "0.5",
        "--out",
        "/opt/ml/model/x",
    ]
    job = make.run(
        SCRIPT, hosts=2, distribution=MPI(), hyperparameters={"epochs": 3, "lr": 0.5}, arguments=words, model_dir=False
    )
    for rank in range(2):
        got = json.loads(make.marked(f"got-{rank}"))
        own = got["environ"]["SM_MODEL_DIR"]
        assert got["argv"] == ["--epochs", "3", *words[:-1], f"{own}/x"]
        assert json.loads(got["environ"]["SM_USER_ARGS"]) == got["argv"]
        assert got["environ"]["FLEETFIT_MASTER_ADDR"] == "127.0.0.1"  # where algo-1 is no name
    assert TensorFlow.attach(job.name).arguments == tuple(words)


def test_what_argparse_drops_is_warned_of_once(make: clusters.Make) -> None:
    script = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.parse_known_args()
    """
    job = make.run(script, hosts=2, distribution=MPI(), hyperparameters={"train-batch-size": 1})
    assert [text for text in job.warnings if "parser" in text] == [
        "the script's parser has no --train-batch-size, and returned it as unknown: did you mean --train_batch_size?"
    ]
