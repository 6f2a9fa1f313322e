"""Output that cannot be written: a job goes on, and a command that has nothing else to do says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import ended

from estimators.cli import Exit
from estimators.client.training_job import TrainingJob
from estimators.records.record import job_names

#: Redirections of a shell.
WAYS = [">/dev/full", ">/dev/full 2>/dev/full", ">&-", ">&- 2>&-", "<&- >&- 2>&-"]
SCRIPT = """
import os, sys
print("begins", flush=True)
sys.exit(len([fd for fd in (0, 1, 2) if not os.path.exists(f"/proc/self/fd/{fd}")]))
"""


pytestmark = pytest.mark.usefixtures("home")


def run(arguments: list[str], way: str, folder: Path) -> tuple[int, str]:
    """Run a command with its output somewhere; returns its exit status, and what was said on standard error."""
    program = [sys.executable, "-m", "estimators.cli.main", *arguments]
    shell = ["sh", "-c", f'exec "$@" {way}', "sh", *program]
    ended = subprocess.run(shell, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_job_goes_on_whose_output_cannot_be_written(way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, said = run(["train", "train.py"], way, tmp_path)
    assert (code, "Traceback" in said) == (0, False)
    if way == ">/dev/full":
        assert said == "fleetfit: the log is no longer shown (No space left on device). The job goes on.\n"
    [name] = job_names()
    assert TrainingJob.attach(name).status == "Completed"


@pytest.mark.parametrize(
    "arguments", [["list"], ["--version"], ["logs", "job-1"], ["logs", "job-1", "--tail", "1"], ["describe", "job-1"]]
)
def test_a_command_says_that_its_output_cannot_be_written(arguments: list[str], tmp_path: Path) -> None:
    ended("job-1", ["a line"])
    code, said = run(arguments, ">/dev/full", tmp_path)
    assert (code, said) == (Exit.UNABLE, "fleetfit: the output cannot be written: No space left on device.\n")
    assert run(arguments, ">&-", tmp_path) == (0, "")


def test_a_closed_pipe_is_quiet() -> None:
    ended("job-1", [f"line {number}" for number in range(20_000)])
    command = [sys.executable, "-m", "estimators.cli.main", "logs", "job-1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (Exit.BROKEN_PIPE, b"")
    process.stderr.close()


def test_what_a_program_starts_with_a_closed_output_does_not_write_into_its_files(tmp_path: Path) -> None:
    """The next file that is opened would be what others take for standard output."""
    script = "import os; from estimators.cli import console; console.open_streams(); print(os.open('file', os.O_CREAT))"
    ended = subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", script], cwd=tmp_path)
    assert ended.returncode == 0 and os.stat(tmp_path / "file").st_size == 0
