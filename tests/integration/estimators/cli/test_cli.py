"""The command line with real jobs: what it prints where, and its exit statuses."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from estimators.cli import Exit
from estimators.records.record import JobRecord

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
def work(alone: Path) -> Path:
    (alone / "train.py").write_text(SCRIPT)
    (alone / "saving.py").write_text(SAVING.format(folder=str(alone)))
    return alone


def start(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "estimators.cli.main", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}, **options,
    )  # fmt: skip


def run(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_a_job_from_the_shell(work: Path) -> None:
    assert run("list") == (0, "", "fleetfit: there are no jobs.\n")
    assert run("list", "-q") == (0, "", "")
    assert json.loads(run("list", "--json")[1]) == []
    status, out, err = run(
        "train", "train.py", "--name", "one", "--metric", "loss=loss: ([0-9.]+)", "-H", "epochs=2", "--",
        "--text", "it's $HOME, \"1e-3\" ü",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "[algo-1:rank 0] epoch 1 loss: 0.5" in out
    assert 'it\\\'s $HOME, "1e-3" ü' in out
    assert "Completed" in out
    assert "loss 0.5" in out

    status, out, err = run("describe", "one")
    assert status == 0
    assert "Completed" in out
    assert "started by:" in out
    described = json.loads(run("describe", "one", "--json")[1])
    assert described["TrainingJobStatus"] == "Completed"
    assert described["FinalMetricDataList"][0]["MetricName"] == "loss"
    assert json.loads(run("describe", "one", "--provenance")[1])["caller"]["kind"] == "command"

    assert run("logs", "one")[1].count("epoch") == 2
    assert run("logs", "one", "--tail", "1")[1] == "[algo-1:rank 0] epoch 1 loss: 0.5\n"
    assert run("logs", "-f", "-n", "1", "one")[1] == "[algo-1:rank 0] epoch 1 loss: 0.5\n"
    assert run("wait", "one") == (0, "", "")
    assert run("stop", "one")[0] == 0
    assert run("train", "train.py", "--name", "one")[0] == Exit.USAGE


def test_a_job_that_fails_or_takes_too_long(work: Path) -> None:
    status, out, err = run("train", "train.py", "--name", "bad", "--json", "--", "--fail", "yes")
    assert status == Exit.FAILED
    result = json.loads(out)
    assert result["status"] == "Failed"
    assert "asked to fail" in result["failure_reason"]
    assert "RuntimeError: asked to fail" in err
    assert err.count("Traceback") == 1 and err.count("raise RuntimeError") == 1
    assert 'File "train.py", line ' in err
    assert "estimators/cli/main.py" not in err, "our own frames are nobody's business"
    assert run("wait", "bad")[0] == Exit.FAILED
    assert "asked to fail" in run("describe", "bad")[1]
    status, _, err = run("train", "train.py", "--max-run", "1s", "--no-logs", "--", "--sleep", "60")
    assert status == Exit.STOPPED
    assert "MaxRuntimeExceeded" in err


def test_a_job_in_the_background(work: Path) -> None:
    status, out, _ = run("train", "train.py", "--no-wait", "--base-name", "slow", "--", "--sleep", "60")
    assert status == 0
    name = out.strip()
    assert name.startswith("slow-")
    assert out == f"{name}\n"
    follower = start("logs", "-f", name)
    assert any("epoch 0" in line for line in follower.stdout)
    assert run("wait", name, "--timeout", "1")[0] == Exit.TIMEOUT
    assert run("list", "--status", "InProgress", "-q")[1] == f"{name}\n"
    assert run("clean", "--job", name, "--yes")[0] == Exit.USAGE, "a running job is never removed"
    status, _, err = run("stop", name, "--wait")
    assert status == 0
    assert "Stopped" in err
    follower.communicate(timeout=60)
    assert follower.returncode == 0, "following ends with the job"
    ended = json.loads(run("describe", name, "--json")[1])
    assert ended["TrainingEndTime"] - ended["TrainingStartTime"] < 60
    assert run("wait", name)[0] == Exit.STOPPED
    assert run("list", "--status", "InProgress", "-q")[1] == ""
    assert run("clean", "--job", name, "--yes")[0] == 0
    assert run("describe", name)[0] == Exit.NOT_FOUND


@pytest.mark.parametrize(
    ("ignored", "sent", "expected", "said"),
    [
        (None, [signal.SIGINT], Exit.INTERRUPTED, "Stopped"),
        # A shell's job in the background has SIGINT ignored; and somebody who ends a whole group may signal twice.
        (signal.SIGINT, [signal.SIGTERM, signal.SIGTERM], Exit.TERMINATED, "Stopped"),
        (signal.SIGHUP, [signal.SIGHUP], 0, "Completed"),  # as under nohup
    ],
)
def test_signals_stop_the_job_unless_they_are_ignored(
    work: Path, ignored: signal.Signals | None, sent: list[signal.Signals], expected: int, said: str
) -> None:
    process = start(
        "train", "saving.py", "--name", "job",
        preexec_fn=(lambda: signal.signal(ignored, signal.SIG_IGN)) if ignored is not None else None,
    )  # fmt: skip
    until(lambda: (work / "saving").exists())
    for number in sent:
        process.send_signal(number)
    if said == "Completed":
        (work / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == expected, err
    assert ("saved" in out) is (said == "Stopped")
    assert said in run("list")[1]


def installed(work: Path) -> dict[str, str]:
    """The variables of a shell that finds ``fleetfit``, in an environment whose path has a space.

    The kernel would split such a path behind ``#!``: installers have a shell start it.
    """
    program = work / "an environment" / "bin" / "fleetfit"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} \"$0\" \"$@\"\n' '''\n"
        "import sys\nfrom estimators.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


_BASH = """
source <(fleetfit completion bash)
COMP_LINE='{line}' COMP_POINT={length} COMP_TYPE=9
_python_argcomplete fleetfit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
_FISH = "fleetfit completion fish | source; complete -C '{line}'"


@pytest.mark.parametrize(("shell", "code"), [("bash", _BASH), ("fish", _FISH)])
def test_shells_complete_commands_options_values_and_jobs(work: Path, shell: str, code: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    JobRecord.create("my-job").release()
    environment = installed(work)
    flags = ["--no-config"] if shell == "fish" else []
    for line, expected in {
        "fleetfit trai": ["train"],
        "fleetfit train -s elastic_h": ["elastic_horovod"],
        "fleetfit list --status Comp": ["Completed"],
        "fleetfit logs my": ["my-job"],
        "fleetfit clean --job la": ["last"],
        "fleetfit logs --fo": ["--follow"],
    }.items():
        text = code.format(line=line, length=len(line))
        done = subprocess.run([shell, *flags, "-c", text], capture_output=True, text=True, env=environment)
        assert done.stderr == "", line
        assert [found.split("\t")[0].strip() for found in done.stdout.splitlines()] == expected, line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script_without_a_zshrc(work: Path) -> None:
    (work / "fleetfit.zsh").write_text(run("completion", "zsh")[1])
    done = subprocess.run(
        ["zsh", "-f", "-c", f"source '{work}/fleetfit.zsh' && print -r -- $_comps[fleetfit]"],
        capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(work)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("_python_argcomplete\n", "")


def test_a_job_from_the_shell_can_be_reproduced(work: Path) -> None:
    """The printed commands, run for real but for the installation of packages, make the same job again."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repo = work / "a project"
    (repo / "jobs").mkdir(parents=True)
    (repo / "jobs" / "train.py").write_text("print('committed')\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(repo), *arguments], check=True)
    (repo / "jobs" / "train.py").write_text("import extra\nprint('changed', extra.WORD)\n")
    (repo / "jobs" / "extra.py").write_text("WORD = 'since then'\n")
    environment = installed(work)
    command = ["fleetfit", "train", str(repo / "jobs" / "train.py"), "--source-dir", str(repo / "jobs"), "-H", "seed=3"]
    first = subprocess.run(command, cwd=repo / "jobs", env=environment, capture_output=True, text=True, check=True)
    assert "changed since then" in first.stdout
    name = run("list", "-q")[1].strip()
    until(lambda: json.loads(run("describe", name, "--provenance")[1])["complete"])

    status, script, _ = run("describe", name, "--reproduce")
    assert status == 0
    assert "Seeds: seed=3" in script
    assert any(line.startswith("pytest==") for line in script.splitlines())
    assert run("describe", name, "--reproduce", "python")[0] == Exit.UNABLE

    (repo / "jobs" / "train.py").write_text("print('something else by now')\n")
    shell = "\n".join(line for line in script.splitlines() if "pip" not in line and "venv" not in line
                      and "install" not in line)  # fmt: skip
    (work / "elsewhere").mkdir()
    second = subprocess.run(
        ["sh", "-c", shell], cwd=work / "elsewhere", env=environment, capture_output=True, text=True, timeout=120
    )
    assert second.returncode == 0, second.stderr
    assert "changed since then" in second.stdout
    assert (repo / "jobs" / "train.py").read_text() == "print('something else by now')\n"
