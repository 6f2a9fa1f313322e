"""Hyperparameters of every kind reach the script intact, as arguments and as variables."""

from __future__ import annotations

import json
from typing import Any

import clusters
import pytest

from estimators import TensorFlow

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


#: What follows the hyperparameters on the command line: it names one of them once more.
ARGUMENTS = [
    "--fp16", "--layers", "64", "32", "--words", "a 'b' \n", "", "--shift=-1e-05", "--float", "0.1", "--out",
    "/opt/ml/model/x",
]  # fmt: skip


@pytest.mark.parametrize(("hosts", "processes"), [(1, None), (2, 2)])
def test_every_value_reaches_the_script_intact(hosts: int, processes: int | None, make: clusters.Make) -> None:
    """Hyperparameters, arguments behind them, and variables; of ours there are none that could be used."""
    variables = {"MINE": "a 'b' \"c\"\nd $HOME", "EMPTY": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    job = make.run(
        SCRIPT,
        hosts=hosts,
        processes=processes,
        hyperparameters=VALUES,
        arguments=ARGUMENTS,
        environment=variables,
    )
    for rank in range(hosts * (processes or 1)):
        got = json.loads(make.marked(f"got-{rank}"))
        argv, environ = got["argv"], got["environ"]
        given, behind = argv[: -len(ARGUMENTS)], argv[-len(ARGUMENTS) :]
        assert behind == [*ARGUMENTS[:-1], f"{environ['SM_MODEL_DIR']}/x"]
        expected = expected_arguments()
        assert expected.pop("--float") == "0.1"  # it stands among the arguments
        assert dict(zip(given[::2], given[1::2], strict=True)) == expected
        assert given[::2] == sorted(given[::2], key=lambda word: word.lstrip("-"))
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
        assert {name: environ.get(name) for name in variables} == variables
        assert environ["FLEETFIT_MASTER_ADDR"] == "127.0.0.1"  # where algo-1 is no name
        ours = {name for name in environ if "TOKEN" in name or name.startswith("FLEETFIT_")}
        assert not ours & {
            "FLEETFIT_JOB_TOKEN", "FLEETFIT_CONTROL_FD", "FLEETFIT_CONTROL_ADDRESS", "FLEETFIT_LIFELINE_FD",
            "FLEETFIT_HOST_SOCKET", "FLEETFIT_PROCESS",
        }  # fmt: skip
    assert TensorFlow.attach(job.name).arguments == tuple(ARGUMENTS)
