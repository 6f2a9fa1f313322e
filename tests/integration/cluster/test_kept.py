"""What is kept between jobs: the next one's script finds its imports done, and nothing of the job before."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest
from imported import LOOK, SLOWLY, comparable, told

from container.system import folders
from estimators import FailurePolicy, TrainingJob
from estimators.backends.hosts import kept
from estimators.cli import clean
from estimators.cli.main import main

KEEP: dict[str, Any] = {"keep_alive_period_in_seconds": 60}
REPORT = "import slowly\nimport aid\naid.report(pid=slowly.PID)\n"


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed modules."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "slowly.py").write_text(SLOWLY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FLEETFIT_FORK", "1")
    yield folder
    for one in kept.find(home()):
        os.kill(one.pid, signal.SIGKILL)


def home() -> Path:
    """The home of these tests' jobs."""
    return Path(os.environ["FLEETFIT_HOME"])


def pid_of(job: TrainingJob) -> int:
    """In which process the first rank's module was imported."""
    pid: int = clusters.reports(job)[0]["pid"]
    return pid


def gone(pid: int) -> None:
    """Wait until nothing is kept."""
    clusters.until(lambda: clusters.process(pid) is None and not kept.find(home()))


def test_the_next_job_finds_its_imports_done_and_nothing_else(make: clusters.Make) -> None:
    first = make.run(
        f"{LOOK}\nos.environ['LEFT'] = '1'\nos.chdir('/')\nkeep = open('/dev/null')\nnumpy.left = random.seed(1)\n",
        hosts=2,
        processes=1,
        environment={"FLEETFIT_FORK": "1", "OF_THE_FIRST": "secret"},
        hyperparameters={"first": 1},
        **KEEP,
    )
    (one,) = kept.find(home())
    assert one.until is not None and one.until > time.time() + 50 and one.bytes > 0
    assert b"secret" not in Path(f"/proc/{one.pid}/environ").read_bytes()
    assert not Path(f"/proc/{one.pid}/cwd").resolve().is_relative_to(home())
    environment = {"OF_THE_FIRST": "secret"}
    second = make.run(LOOK, hosts=2, processes=1, environment=environment, hyperparameters={"second": 2}, **KEEP)
    assert [again.pid for again in kept.find(home())] == [one.pid]
    without = make.run(
        LOOK,
        hosts=2,
        processes=1,
        environment={**environment, "FLEETFIT_FORK": "0"},
        hyperparameters={"second": 2},
        **KEEP,
    )
    assert not told(second, "refused") and set(told(second, "seconds")) == {0.0}
    assert told(first, "seconds") and max(told(first, "seconds")) > 0
    warm, cold, before = (clusters.reports(job) for job in (second, without, first))
    for rank, said in warm.items():
        assert said["forked"] is True and cold[rank]["forked"] is False
        assert comparable(second, said["seen"]) == comparable(without, cold[rank]["seen"])
        assert first.name not in json.dumps(said)
        assert said["random"] != before[rank]["random"]


def test_what_has_changed_since_is_imported_anew_and_once(make: clusters.Make, library: Path) -> None:
    def change() -> None:
        (library / "slowly.py").write_text(f'{SLOWLY}\nREAD = os.environ.get("READ")\n')

    def shadow() -> None:
        (library / "numpy_is_not_this.py").write_text("")  # could be found in place of another

    def kill() -> None:
        os.kill(last, signal.SIGKILL)

    last = 0
    for what, act, anew, variables in (
        ("at first", None, True, {}),
        ("nothing", None, False, {}),
        ("a module", change, True, {}),
        ("a variable that nobody has read", None, False, {"LATE": "1"}),
        ("a variable that was read", None, True, {"READ": "1"}),
        ("TensorFlow's log", None, True, {"TF_CPP_MIN_LOG_LEVEL": "1"}),
        ("what could be found", shadow, True, {}),
        ("it was killed", kill, True, {}),
    ):
        if act is not None:
            act()
        script = (
            f"{REPORT}import os\naid.report(pid=slowly.PID, read=getattr(slowly, 'READ', ''), env=dict(os.environ))\n"
        )
        environment = {"FLEETFIT_FORK": "1", **variables}
        job = make.run(script, hosts=2, processes=1, environment=environment, **KEEP)
        first, second = clusters.reports(job).values()
        assert first["pid"] == second["pid"], f"{what}: each host has imported it"
        assert (first["pid"] != last) == anew, what
        assert variables.items() <= first["env"].items() and (first["read"] or "") == variables.get("READ", ""), what
        assert told(job, "unfit") + told(job, "refused") == [], what
        if what == "a module":
            clusters.until(lambda pid=last: clusters.process(pid) is None)
        last = first["pid"]
    # A project has its own modules.
    assert pid_of(make.run(REPORT, files={"numpy.py": ""}, **KEEP)) != last


@pytest.mark.leaves("folders")
def test_jobs_of_several_homes_share_a_folder_that_the_environment_names(
    make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    monkeypatch.setenv("FLEETFIT_KEEP_IMPORTERS", str(folder))
    first = make.run(REPORT)
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "another"))
    (one,) = kept.find(home())
    assert one.pid == pid_of(make.run(REPORT)) == pid_of(first)
    assert pid_of(make.run(REPORT, keep_alive_period_in_seconds=0)) != one.pid
    assert pid_of(make.run(REPORT, **KEEP)) != one.pid  # which is its own home's
    for each in kept.find(home()):
        kept.leftover(each).remove()
    assert kept.find(home()) == []


def test_attempts_share_it_and_what_a_job_that_failed_leaves_is_for_those_who_ask(make: clusters.Make) -> None:
    policy = FailurePolicy(max_failures=1, cooldown=(0, 0))
    job = make.start(f"{REPORT}raise SystemExit(3)\n", options={"failure_policy": policy}, **KEEP)
    assert clusters.await_terminal(job) == "Failed"
    (one,) = kept.find(home())
    pids = [json.loads(line.text[7:])["pid"] for line in job.log_lines() if line.text.startswith("report ")]
    assert pids == [one.pid] * 2
    assert pid_of(make.run(REPORT)) != one.pid
    assert [again.pid for again in kept.find(home())] == [one.pid]
    assert pid_of(make.run(REPORT, **KEEP)) == one.pid


GOING = """
import slowly
import os, subprocess, time
import aid
helper = subprocess.Popen(["sleep", "300"])
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["supervisor", "toolkit", "importer", "wrapper", "rank", "root"])
def test_after_sigkill_of_one_process_nothing_is_left_or_kept(kind: str, make: clusters.Make) -> None:
    keeps = kind in ("supervisor", "toolkit", "root")  # what a job that has failed has imported would stay
    job = make.start(GOING, hosts=2, processes=1, ready=2, **(KEEP if keeps else {}))
    snapshot = clusters.Snapshot(job)
    root = snapshot.find("root")
    assert [(one.pid, one.until) for one in kept.find(home())] == ([(root.pid, None)] if keeps else [])
    assert [member.kind for member in snapshot.members].count("importer") == 2
    if kind == "supervisor":
        snapshot.supervisor.kill()
    elif kind == "root":  # which nobody needs any more
        root.kill()
        job.stop(grace=0)
    else:
        snapshot.find(kind, "algo-2").kill()
    snapshot.await_end()
    assert clusters.await_terminal(job) == ("Stopped" if kind == "root" else "Failed")
    reason = str(job.describe().get("FailureReason"))
    assert "algo-2" in reason or kind in ("supervisor", "root")
    if kind == "importer":
        assert "was killed together with the process that imports modules for" in reason and "batch size" not in reason
    snapshot.await_tidy()
    gone(root.pid)
    clusters.until(lambda: not folders.of_importers(kept.whose(home())).exists())


def test_list_and_doctor_show_it_and_clean_or_its_time_end_it(
    make: clusters.Make, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = pid_of(make.run(REPORT, **KEEP))
    for command in ("list", "doctor"):
        with contextlib.suppress(SystemExit):
            main([command])
        captured = capsys.readouterr()
        assert f"process {pid}, " in captured.out + captured.err, command
    items = [item for item in clean.find(clean.Selection()) if item.kind is clean.ItemKind.KEPT]
    assert [item.name.split()[1].rstrip(",") for item in items] == [str(pid)]
    assert [removal.error for removal in clean.remove(items)] == [None]
    gone(pid)
    assert not folders.of_importers(kept.whose(home())).exists()
    gone(pid_of(make.run(REPORT, keep_alive_period_in_seconds=1)))
