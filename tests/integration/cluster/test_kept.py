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


def test_what_was_changed_since_is_imported_anew(make: clusters.Make, library: Path) -> None:
    first = make.run(REPORT, **KEEP)
    assert pid_of(make.run(REPORT, **KEEP)) == pid_of(first)
    (library / "slowly.py").write_text(f"{SLOWLY}\nCHANGED = True\n")
    script = f"{REPORT}assert slowly.CHANGED\n"
    changed = make.run(script, **KEEP)
    assert pid_of(changed) != pid_of(first)
    gone_now = pid_of(first)
    clusters.until(lambda: clusters.process(gone_now) is None)
    (library / "numpy_is_not_this.py").write_text("")  # a module that could be found in place of another
    assert pid_of(make.run(script, **KEEP)) != pid_of(changed)


def test_what_all_hosts_of_a_job_must_import_anew_is_imported_once(make: clusters.Make, library: Path) -> None:
    settings: dict[str, Any] = {"hosts": 2, "processes": 1, **KEEP}
    first = make.run(REPORT, **settings)
    (library / "slowly.py").write_text(f"{SLOWLY}\nCHANGED = True\n")
    changed = make.run(REPORT, **settings)
    assert {one["pid"] for one in clusters.reports(changed).values()} == {pid_of(changed)} != {pid_of(first)}
    assert told(changed, "unfit") + told(changed, "refused") == []


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


def test_a_project_with_a_module_of_that_name_has_its_own(make: clusters.Make) -> None:
    first = make.run(REPORT, **KEEP)
    second = make.run("import slowly\nimport aid\naid.report(pid=slowly.PID)\n", files={"numpy.py": ""}, **KEEP)
    assert pid_of(second) != pid_of(first)


def test_only_variables_that_were_read_have_it_import_anew(make: clusters.Make, library: Path) -> None:
    (library / "slowly.py").write_text(SLOWLY + 'READ = os.environ.get("READ")\n')
    script = "import slowly\nimport aid, os\naid.report(pid=slowly.PID, seen=[slowly.READ, os.environ.get('LATE')])\n"
    found = []
    for variables in ({"LATE": "1"}, {"LATE": "2"}, {"READ": "1"}, {"TF_CPP_MIN_LOG_LEVEL": "1"}):
        job = make.run(script, environment={"FLEETFIT_FORK": "1", **variables}, **KEEP)
        assert clusters.reports(job)[0]["seen"] == [variables.get("READ"), variables.get("LATE")]
        found.append(pid_of(job))
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_job_that_failed_leaves_its_imports_and_one_without_leaves_none(make: clusters.Make) -> None:
    job = make.start(f"{REPORT}raise SystemExit(3)\n", **KEEP)
    assert clusters.await_terminal(job) == "Failed"
    (one,) = kept.find(home())
    assert pid_of(make.run(REPORT)) != one.pid  # it does not ask for what is kept
    assert [again.pid for again in kept.find(home())] == [one.pid]


def test_nothing_is_kept_beyond_its_time(make: clusters.Make) -> None:
    job = make.run(REPORT, keep_alive_period_in_seconds=1)
    pid = pid_of(job)
    gone(pid)
    place = kept.find(home())
    assert place == [] and clusters.process(pid) is None


GOING = """
import slowly
import os, subprocess, time
import aid
helper = subprocess.Popen(["sleep", "300"])
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["supervisor", "toolkit", "importer", "root"])
def test_after_sigkill_of_one_process_nothing_is_kept(kind: str, make: clusters.Make) -> None:
    job = make.start(GOING, hosts=2, processes=1, ready=2, **KEEP)
    snapshot = clusters.Snapshot(job)
    (one,) = kept.find(home())
    assert one.until is None
    killed = snapshot.supervisor if kind == "supervisor" else snapshot.find(kind) if kind != "root" else None
    if killed is not None:
        killed.kill()
    else:
        os.kill(one.pid, signal.SIGKILL)
        job.stop(grace=0)
    snapshot.await_end()
    gone(one.pid)
    clusters.until(lambda: not folders.of_importers(kept.whose(home())).exists())


def test_one_that_is_killed_while_it_is_kept_is_done_without(make: clusters.Make) -> None:
    first = make.run(REPORT, **KEEP)
    os.kill(pid_of(first), signal.SIGKILL)
    assert pid_of(make.run(REPORT, **KEEP)) != pid_of(first)


def test_list_and_doctor_show_it_and_clean_ends_it(make: clusters.Make, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_next_attempt_and_the_next_job_share_it(make: clusters.Make) -> None:
    script = (
        "import slowly\nimport aid, os\naid.report(pid=slowly.PID)\nos._exit(os.environ['FLEETFIT_ATTEMPT'] == '0')"
    )
    policy = FailurePolicy(max_failures=1, cooldown=(0, 0))
    job = make.run(script, options={"failure_policy": policy}, **KEEP)
    assert pid_of(make.run(REPORT, **KEEP)) == pid_of(job)
