"""What is written on a command line reaches the script as it was typed."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract.hyperparameters import ARGUMENTS, decode, encode, to_cmd_args
from estimators.cli import jobargs, parsing
from estimators.cli.jobargs import distribution
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2D", 172800), ("1d1h1m1s", 90061)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parsing.duration(text) == seconds


def test_what_is_done_about_what_is_noticed() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    jobargs.add(parser)
    described = jobargs.job_of(parser.parse_args(["t.py", "--on-undistributed", "fail", "--on-nan", "fail"]))
    assert described.estimator.run_options == RunOptions(on_undistributed="fail", on_nan="fail")
    assert jobargs.job_of(parser.parse_args(["t.py"])).estimator.run_options == RunOptions()
    with pytest.raises(argparse.ArgumentError, match=r"--on-nan.*'warn', 'fail'|--on-nan.*warn, fail"):
        parser.parse_args(["t.py", "--on-nan", "maybe"])


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "1.5h", "h", "5x", "m5"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parsing.duration(text)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--epochs", "3", "--lr=0.1"], {"epochs": 3, "lr": 0.1}),
        (["--lr", "-0.5", "--offset=-3"], {"lr": -0.5, "offset": -3}),
        (["-v", "1"], {"v": 1}),
        (["--text", "a b  'c'", "--empty", "", "--dash", "-"], {"text": "a b  'c'", "empty": "", "dash": "-"}),
        (["--ab=b=c"], {"ab": "b=c"}),
        (["--rate", "1e-3", "--flag", "true", "--name", "007"], {"rate": "1e-3", "flag": "true", "name": "007"}),
        # What is no name with a value is no hyperparameter.
        (["file.txt"], {}),
        (["--epochs", "3", "4"], {}),
        (["--no-cuda", "--epochs", "3", "--fp16"], {"epochs": 3}),
        (["--layers", "64", "32", "--lr", "0.1"], {"lr": 0.1}),
        (["--lr", "1", "--lr=2", "-v", "2"], {"v": 2}),
        (["--x", "1", "-lr", "1"], {}),  # as hyperparameters they would be -x and --lr
        (["--lr", "1", "--", "--epochs", "3"], {"lr": 1}),
        (["--sagemaker_program", "x.py"], {}),
    ],
)
def test_arguments_of_the_script(arguments: list[str], values: dict) -> None:
    assert parsing.hyperparameters([], arguments) == values


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.one_of(WORDS, st.from_regex(r"--?[a-z][a-z_]{0,8}(=-?[0-9])?", fullmatch=True))))
def test_the_script_gets_what_was_typed(typed: list[str]) -> None:
    sent = encode({**parsing.hyperparameters([], typed), ARGUMENTS: typed})
    received = decode(sent)
    words = received.pop(ARGUMENTS)
    assert to_cmd_args(received, words) == typed


def test_hyperparameters_by_name_json_and_file(tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text(json.dumps({"layers": [1, 2], "none": None}), encoding="utf-8-sig")
    given = ["epochs=3", '{"on": true, "deep": {"x": "1"}}', f"@{tmp_path / 'h.json'}", "lr=1e-3"]
    assert parsing.hyperparameters(given) == {
        "epochs": 3, "on": True, "deep": {"x": "1"}, "layers": [1, 2], "none": None, "lr": "1e-3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "part"),
    [("epochs", "NAME=VALUE"), ("=3", "NAME=VALUE"), ("{", "not valid JSON"), ("@/none", "cannot be read")],
)
def test_hyperparameters_that_cannot_be_read(text: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        parsing.hyperparameters([text])


def test_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsing.inputs([]) is None
    assert parsing.inputs(["data"]) == {"training": "data"}
    assert parsing.inputs(["train=a", "test=s3://b/c=d"]) == {"train": "a", "test": "s3://b/c=d"}
    assert parsing.inputs(["/data/day=1"]) == {"training": "/data/day=1"}
    (tmp_path / "day=2").mkdir()
    assert parsing.inputs(["day=2"]) == {"training": "day=2"}
    with pytest.raises(ConfigurationError, match="twice"):
        parsing.inputs(["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("none", None, []), None),
        (("none", 1, []), None),
        (("mpi", None, []), {"mpi": {"enabled": True}}),
        (("horovod", 2, []), {"mpi": {"enabled": True, "processes_per_host": 2}}),
        (("ps", None, []), {"parameter_server": {"enabled": True, "cluster_spec": "coordinator"}}),
        (
            ("ps", None, ["cluster_spec=sagemaker"]),
            {"parameter_server": {"enabled": True, "cluster_spec": "sagemaker"}},
        ),
        (
            ("collective-all-reduce", 2, ["communication=ring", "timeout_seconds=5"]),
            {"multi_worker_mirrored_strategy": {
                "enabled": True, "processes_per_host": 2, "communication": "ring", "timeout_seconds": 5,
            }},
        ),
        (
            ("mpi", None, ["custom_mpi_options=-x A=1 --verbose"]),
            {"mpi": {"enabled": True, "custom_mpi_options": "-x A=1 --verbose"}},
        ),
    ],
)  # fmt: skip
def test_strategies(arguments: tuple, expected: object) -> None:
    assert distribution(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("mpii", None, []), "Did you mean 'mpi'"),
        (("none", 2, []), "--processes needs a --strategy"),
        (("none", None, ["a=1"]), "--option needs a --strategy"),
        (("ps", 2, []), "one worker on each host"),
    ],
)
def test_strategies_that_cannot_be(arguments: tuple, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        distribution(*arguments)
