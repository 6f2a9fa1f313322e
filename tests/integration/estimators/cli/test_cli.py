"""The command line with real jobs: what it prints where, and its exit statuses."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from estimators.cli import Exit
from estimators.cli import main as cli

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


def running(name: str) -> bool:
    """Whether the script of a job has begun to print."""
    return "epoch" in run("logs", name)[1]


def test_help_is_light() -> None:
    program = (
        "import sys\n"
        "from estimators.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    heavy = ('asyncio', 'pandas', 'numpy', 'boto3', 'botocore', 'tensorflow', 'estimators.job.request')\n"
        "    print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for word in ("train", "plan", "list", "describe", "logs", "stop", "wait", "doctor", "clean", "install", "130"):
        assert word in done.stdout
    assert done.stderr == "[]\n"


def test_train_shows_logs_and_the_table(work: Path) -> None:
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
    assert run("logs", "one", "--rank", "7")[1] == ""
    assert run("wait", "one") == (0, "", "")
    assert run("stop", "one")[0] == 0
    assert run("train", "train.py", "--name", "one")[0] == Exit.USAGE


def test_a_job_that_fails(work: Path) -> None:
    status, _, err = run("train", "train.py", "--name", "bad", "--", "--fail", "yes")
    assert status == Exit.FAILED
    assert "RuntimeError: asked to fail" in err
    assert "Traceback" in err
    assert "estimators/cli/main.py" not in err, "our own frames are nobody's business"
    assert run("wait", "bad")[0] == Exit.FAILED
    assert "asked to fail" in run("describe", "bad")[1]
    assert run("train", "train.py", "--json", "--", "--fail", "yes")[0] == Exit.FAILED


def test_json_of_a_job_that_fails(work: Path) -> None:
    status, out, err = run("train", "train.py", "--json", "--", "--fail", "yes")
    assert status == Exit.FAILED
    result = json.loads(out)
    assert result["status"] == "Failed"
    assert "asked to fail" in result["failure_reason"] and "asked to fail" in err


def test_a_job_in_the_background(work: Path) -> None:
    status, out, _ = run("train", "train.py", "--no-wait", "--base-name", "slow", "--", "--sleep", "60")
    assert status == 0
    name = out.strip()
    assert name.startswith("slow-")
    assert out == f"{name}\n"
    until(lambda: running(name))
    assert run("wait", name, "--timeout", "1")[0] == Exit.TIMEOUT
    assert run("list", "--status", "InProgress", "-q")[1] == f"{name}\n"
    assert run("clean", "--job", name, "--yes")[0] == Exit.USAGE, "a running job is never removed"
    begin = time.monotonic()
    status, _, err = run("stop", name, "--wait")
    assert status == 0
    assert "Stopped" in err
    assert time.monotonic() - begin < 60  # and not the two minutes of a script that does not listen
    assert run("wait", name)[0] == Exit.STOPPED
    assert run("list", "--status", "InProgress", "-q")[1] == ""
    assert run("clean", "--job", name, "--yes")[0] == 0
    assert run("describe", name)[0] == Exit.NOT_FOUND


def test_follow_ends_with_the_job_and_shows_what_comes(work: Path) -> None:
    name = run("train", "train.py", "--no-wait", "--", "--epochs", "3", "--sleep", "1")[1].strip()
    status, out, _ = run("logs", "-f", name)
    assert status == 0
    assert out.count("epoch") == 3
    assert run("describe", name, "--json")[0] == 0
    assert "Completed" in run("describe", name)[1]
    assert run("logs", "-f", "-n", "1", name)[1].count("epoch") == 1


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)])
def test_signals_stop_the_job(work: Path, number: int, expected: int) -> None:
    process = start("train", "train.py", "--name", "job", "--", "--sleep", "60")
    until(lambda: (work / "home" / "jobs" / "job").exists() and running("job"))
    begin = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == expected
    assert time.monotonic() - begin < 60
    assert "Stopped" in run("list")[1]


def test_sigterm_stops_a_job_that_a_shell_runs_in_the_background(work: Path) -> None:
    """Such a shell has SIGINT ignored; and somebody who ends a whole group may signal twice."""
    process = start(
        "train", "saving.py", "--name", "job", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    until(lambda: (work / "saving").exists())
    process.terminate()
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == Exit.TERMINATED, err
    assert "saved" in out
    assert "Stopped" in run("list")[1]


def test_a_hangup_is_ignored_under_nohup(work: Path) -> None:
    process = start(
        "train", "saving.py", "--name", "job", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    until(lambda: (work / "saving").exists())
    process.send_signal(signal.SIGHUP)
    (work / "go").touch()
    assert process.wait(timeout=60) == 0
    assert "Completed" in run("list")[1]


def test_max_run_is_a_stop(work: Path) -> None:
    status, _, err = run("train", "train.py", "--max-run", "1s", "--no-logs", "--", "--sleep", "60")
    assert status == Exit.STOPPED
    assert "MaxRuntimeExceeded" in err


def test_a_closed_pipe_is_quiet(work: Path) -> None:
    run("train", "train.py", "--name", "job", "--", "--epochs", "20000")
    process = start("logs", "job")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == Exit.BROKEN_PIPE
    assert process.stderr.read() == ""


def test_list_for_people_and_for_scripts(work: Path) -> None:
    assert run("list") == (0, "", "fleetfit: there are no jobs.\n")
    assert run("list", "-q") == (0, "", "")
    assert json.loads(run("list", "--json")[1]) == []
    for name in ("first", "second"):
        run("train", "train.py", "--name", name, "--no-logs")
    out = run("list")[1]
    assert out.splitlines()[0].split() == ["NAME", "STATUS", "STRATEGY", "HOSTS", "CREATED", "TOOK"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["second", "first"]
    assert "\x1b" not in out
    assert run("list", "-q", "--limit", "1")[1] == "second\n"
    assert [job["status"] for job in json.loads(run("list", "--json")[1])] == ["Completed", "Completed"]


def test_plan_starts_nothing(work: Path) -> None:
    status, out, err = run("plan", "train.py", "--hosts", "2", "--", "--epochs", "2")
    assert (status, err) == (0, "")
    assert "algo-2" in out
    assert run("train", "train.py", "--hosts", "2", "--dry-run", "--", "--epochs", "2")[0] == 0
    assert json.loads(run("plan", "train.py", "--json")[1])
    assert not (work / "home" / "jobs").exists()


def test_a_source_dir_and_a_path_below_it(work: Path) -> None:
    (work / "code").mkdir()
    (work / "code" / "train.py").write_text("import helper")
    (work / "code" / "helper.py").write_text("print('helped')")
    for script in ("train.py", "code/train.py"):
        status, out, err = run("train", script, "--source-dir", "code")
        assert (status, err) == (0, "")
        assert "helped" in out


def test_clean_asks_and_says_what_it_frees(work: Path) -> None:
    run("train", "train.py", "--name", "old", "--no-logs")
    status, out, err = run("clean", "--job", "old", "--dry-run")
    assert status == 0
    assert "old" in out
    assert "nothing was removed" in err
    status, out, err = run("clean")
    assert (status, out) == (0, "")
    assert (
        "1 finished job holds " in err
        and "--older-than 7d, --keep 20 or --free 5G" in err
        and "--finished to remove all" in err
    )
    assert "old" in run("clean", "--finished", "--dry-run")[1]
    status, _, err = run("clean", "--keep", "0")
    assert status == Exit.USAGE
    assert "--yes" in err
    status, out, err = run("clean", "--keep", "0", "--yes")
    assert status == 0
    assert re.search(r"removed [1-9]\d* of", err), "other tests may just have left processes"
    assert run("list", "-q")[1] == ""


def test_doctor(work: Path) -> None:
    status, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert status == (0 if report["healthy"] else Exit.FAILED)
    assert "OpenMPI" in run("doctor")[1]


def test_version(work: Path) -> None:
    assert run("version")[1] == run("--version")[1]
    assert run("version")[1].startswith("fleetfit ")
    assert run()[0] == Exit.USAGE


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
    run("train", "train.py", "--name", "my-job", "--no-logs")
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


def test_a_job_by_the_beginning_of_its_name_and_the_last_one(work: Path) -> None:
    assert run("describe", "last")[0] == Exit.NOT_FOUND
    for name in ("digits-1", "digits-2", "other"):
        assert run("train", "train.py", "--name", name, "--no-logs")[0] == 0
    status, out, err = run("describe", "oth", "--json")
    assert (status, json.loads(out)["TrainingJobName"], err) == (0, "other", "fleetfit: oth is other.\n")
    assert run("report", "last", "--json")[2] == "fleetfit: last is other.\n"
    assert run("wait", "last", "other")[2] == "fleetfit: last is other.\n"
    status, out, err = run("logs", "digits")
    assert (status, out) == (Exit.USAGE, "")
    assert "2 jobs begin with 'digits': digits-1, digits-2." in err
    assert "digits-1" in run("compare", "digits-1", "digits-2")[1]
    assert "digits-2" in run("clean", "--job", "digits-2", "--dry-run")[1]
    assert run("logs", "nothing")[0] == Exit.NOT_FOUND
    # A rank that there is not.
    status, out, err = run("logs", "other", "-r", "7")
    assert (status, out) == (Exit.USAGE, "")
    assert "has no rank 7: its only rank is 0." in err
    assert "epoch 0" in run("logs", "other", "-r", "0")[1]


def test_output_in_ascii(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    out = run("train", "train.py")[1]
    assert out.isascii()
    assert "?" not in out
    assert re.search(r"phases +launch [0-9.]+ s \| ", out)
    for command in ([], *([name] for name in cli.commands_of(cli.parser()))):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main([*command, "--help"]) == 0
        assert stream.tell() > 0


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
    requirements = run("describe", name, "--reproduce", "requirements")[1]
    assert any(line.startswith("pytest==") for line in requirements.splitlines())
    assert run("describe", name, "--reproduce", "cell")[0] == Exit.UNABLE

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
