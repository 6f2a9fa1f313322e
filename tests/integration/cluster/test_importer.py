"""Ranks that are forked from the host's importer: what a script sees is what it sees without one, and nothing stays."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import clusters
import pytest
from imported import LOOK, SLOWLY, comparable, told

from estimators import FailurePolicy


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed modules."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "slowly.py").write_text(SLOWLY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FLEETFIT_FORK", "1")
    return folder


@pytest.mark.parametrize("shape", [{"hosts": 2, "processes": 1}, {"hosts": 1, "processes": 2}, {"hosts": 1}])
def test_a_script_sees_what_it_sees_without_one(shape: dict[str, int], make: clusters.Make) -> None:
    with_one = make.run(LOOK, **shape)
    without = make.run(LOOK, environment={"FLEETFIT_FORK": "0"}, **shape)
    forked, spawned = clusters.reports(with_one), clusters.reports(without)
    assert sorted(forked) == sorted(spawned) == list(range(shape["hosts"] * shape.get("processes", 1)))
    assert not told(with_one, "unfit") + told(with_one, "refused") and told(without, "imported") == []
    for rank, said in forked.items():
        assert (said["forked"], spawned[rank]["forked"]) == (True, False)
        assert comparable(with_one, said["seen"]) == comparable(without, spawned[rank]["seen"])
        assert said["started"] == spawned[rank]["started"] == [2, 2]
        printed = [clusters.printed(job, rank).count("slowly was imported") for job in (with_one, without)]
        assert printed == [2, 2]  # by the rank, and by the process that it spawns
    if len(forked) > 1:
        for name in ("random", "key"):
            assert forked[0][name] != forked[1][name]


ENDS = {
    "exception": 'def fail():\n    raise ValueError("no such thing")\nfail()',
    "exit": "import sys\nsys.exit(7)",
    "exit with words": "import sys\nsys.exit('enough')",
    "interrupt": "raise KeyboardInterrupt",
    "another thread": "import threading\nthreading.Thread(target=print, args=('late',)).start()\nraise SystemExit(3)",
    "exception in an exit function": "import atexit\natexit.register(int, 'x')\nraise SystemExit(4)",
    "own hook": (
        "import sys, traceback\n"
        "def hook(*given):\n"
        "    print('mine', len(traceback.extract_tb(given[2])))\n"
        "    sys.__excepthook__(*given)\n"
        "sys.excepthook = hook\n"
        "def fail():\n    raise ValueError('no such thing')\nfail()"
    ),
    "hook that fails": "import sys\nsys.excepthook = lambda *given: 1 / 0\nraise ValueError('no such thing')",
    "cause": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no such thing') from error",
    "text without end": "import sys\nsys.stdout.write('no end')\nraise SystemExit(5)",
    "abort": "import os\nos.abort()",
    "exit functions": "import atexit\natexit.register(print, 'a last word', flush=True)\nraise SystemExit(3)",
    "syntax": "exec('(')",
}


def test_it_ends_as_without_one(make: clusters.Make) -> None:
    """In as many attempts as there are ends."""
    acts = (f"if attempt == {number}:\n{textwrap.indent(code, '    ')}\n" for number, code in enumerate(ENDS.values()))
    script = "import slowly\nimport os\nattempt = int(os.environ['FLEETFIT_ATTEMPT'])\n" + "".join(acts)
    policy = FailurePolicy(max_failures=len(ENDS), cooldown=(0, 0))
    found = []
    for fork in ("1", "0"):
        job = make.start(script, environment={"FLEETFIT_FORK": fork}, options={"failure_policy": policy})
        assert clusters.await_terminal(job) == "Failed" and job.failure is not None
        assert bool(told(job, "imported")) == (fork == "1")
        failures = [one["failure"] for one in job.describe()["Fleetfit"]["attempts"]][: len(ENDS) - 1]
        ends = {}
        for number, (name, failure) in enumerate(zip(ENDS, [*failures, job.failure.to_dict()], strict=True)):
            # An attempt fails by an exception when it is told of, which may be before the process has ended.
            reason = failure["message"].replace(" (exited with code 1)", "")
            lines = [line.text for line in job.log_lines() if line.attempt == number and line.rank is not None]
            traceback = failure.get("traceback")
            ends[name] = [text.replace(job.name, "JOB") for text in (reason, *([traceback] if traceback else lines))]
        found.append(ends)
    assert found[0] == found[1]


KILLED = """
import os, signal
PID = os.getpid()
if "OMPI_COMM_WORLD_RANK" not in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
"""
#: What is in the module, under what it is told why no rank was forked from who has imported it, and why.
UNFIT = {
    "threads": (
        SLOWLY + "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "unfit",
        "threads",
    ),
    "processes": (SLOWLY + "import subprocess\nHELPER = subprocess.Popen(['sleep', '9'])", "unfit", "processes"),
    "socket": (SLOWLY + "import socket\nPAIR = socket.socketpair()", "unfit", "a socket"),
    "timer": (SLOWLY + "import signal\nsignal.setitimer(signal.ITIMER_REAL, 100)", "unfit", "a timer"),
    "the script's": (SLOWLY + "import helper", "unfit", "helper"),
    "variables": (SLOWLY + "RANK = os.environ.get('OMPI_COMM_WORLD_RANK')", "refused", "OMPI_COMM_WORLD_RANK differs"),
    "path": (SLOWLY, "unfit", "train.py has 'sys.path'"),  # which the script changes before it imports the module
    "killed": (KILLED, None, ""),
}


@pytest.mark.parametrize(("module", "kind", "why"), UNFIT.values(), ids=UNFIT)
def test_where_no_rank_can_be_forked_each_imports_by_itself_and_is_told_why(
    module: str, kind: str | None, why: str, make: clusters.Make, library: Path
) -> None:
    for name in ("slowly", "jax"):  # the one is taken where it is imported first, the other one anywhere
        (library / f"{name}.py").write_text(module)
    imports = "import sys\nsys.path.append('lib')\nimport jax as slowly\n" if "path" in why else "import slowly\n"
    script = f"{imports}import aid, os\naid.report(forked=slowly.PID != os.getpid())\n"
    job = make.run(script, files={"helper.py": ""}, hosts=2, processes=1)
    assert [said["forked"] for said in clusters.reports(job).values()] == [False, False]
    if kind is not None:
        said = told(job, kind)
        assert why in said[0] and len(set(said)) == 1, said
        assert job.describe()["Fleetfit"]["importer"] == [said[0]]


#: A package that is imported wherever a script imports it, and one that changes what that reads in a way that no source
#: of the script's shows.
JAX, ACTS = (
    """
import os
PID = os.getpid()
FIRST = os.environ.get("FIRST")
print("jax was imported", flush=True)
os.environ["OF_JAX"] = "1"
""",
    """
import os, sys
def act():
    {act}
""",
)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ('os.environ["FIRST"] = "2"', "the script has set FIRST before it imports jax"),
        ('os.environ["TF_CPP_X"] = "1"', "the script has set TF_CPP_X before it imports jax"),
        ('sys.path.insert(0, os.path.join(sys.path[0], "lib"))', "would import jax from "),
        ('os.environ["UNREAD"] = "1"', None),
    ],
)
def test_a_script_that_changes_what_was_read_already_is_told_of_it(
    act: str, why: str | None, make: clusters.Make, library: Path
) -> None:
    (library / "jax.py").write_text(JAX)
    (library / "acts.py").write_text(ACTS.format(act=act))
    script = "import os\nimport aid\nimport acts\nacts.act()\nimport jax\naid.report(forked=jax.PID != os.getpid())\n"
    job = make.start(script, files={"lib/jax.py": "PID = 0\n"})
    if why is None:
        assert clusters.await_terminal(job) == "Completed" and clusters.reports(job)[0]["forked"]
    else:
        assert clusters.await_terminal(job) == "Failed" and told(job, "imported")
        reason = str(job.describe()["FailureReason"])
        assert why in reason and "FLEETFIT_FORK" in reason


def test_what_a_script_sets_first_and_imports_late_is_as_without_one(make: clusters.Make, library: Path) -> None:
    """With what the package has printed and set; a package that it does not import is not there."""
    (library / "slowly.py").write_text(SLOWLY + 'os.environ["SET"] = os.environ.get("FIRST", "") + "!"\n')
    (library / "jax.py").write_text(JAX)
    (library / "keras.py").write_text(JAX.replace("jax", "keras").replace("OF_JAX", "OF_KERAS"))
    script = """
    import os
    os.environ["FIRST"] = "1"
    import slowly
    import sys
    import aid
    def main():
        print("first", "jax" in sys.modules, "OF_JAX" in os.environ, os.environ["SET"], flush=True)
        import jax
        print("then", "jax" in sys.modules, "keras" in sys.modules, os.environ["OF_JAX"], jax.FIRST, flush=True)
        aid.report(forked=jax.PID != os.getpid())
    if len(sys.argv) > 3:
        import keras
    main()
    """
    job = make.run(script)
    assert clusters.reports(job)[0]["forked"] and {"slowly", "jax", "keras"} <= set(told(job, "imported")[0])
    lines = [line for line in clusters.printed(job) if not line.startswith("report")]
    assert lines == ["slowly was imported", "first False False 1!", "jax was imported", "then True False 1 1"], lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_can_be_ended_while_modules_are_imported(
    number: signal.Signals, make: clusters.Make, library: Path
) -> None:
    (library / "slowly.py").write_text(
        textwrap.dedent("""
        import os, time
        open(os.path.join(os.environ["MARKS"], "importing"), "w").close()
        time.sleep(300)
        """)
    )
    job = clusters.fit(make("import slowly\n", hosts=2, processes=1), wait=False)
    make.marked("importing")
    snapshot = clusters.Snapshot(job)
    if number == signal.SIGTERM:
        clusters.until(lambda: len([one for one in clusters.Snapshot(job).members if one.kind == "wrapper"]) == 2)
        snapshot = clusters.Snapshot(job)
        job.stop()
        assert clusters.await_terminal(job) == "Stopped"
    else:
        snapshot.supervisor.kill()
    snapshot.await_end()


def test_imports_that_take_long_are_no_hang_and_no_late_start(make: clusters.Make, library: Path) -> None:
    for name in ("one", "two", "three"):
        (library / f"{name}.py").write_text("import time\ntime.sleep(1.2)\n")
    (library / "slowly.py").write_text(f"import one, two, three\n{SLOWLY}")
    script = "import slowly\nimport aid, os\naid.report(forked=slowly.PID != os.getpid())\n"
    job = make.run(script, processes=2, options={"start_timeout": 2.0}, hang_timeout=2.0)
    assert {said["forked"] for said in clusters.reports(job).values()} == {True}
    (started,) = [event.time_ns for event in job.record.events("phase") if event.data["name"] == "ranks_started"]
    (imported,) = [event.time_ns for event in job.record.events("importer")]
    assert started < imported  # the time is the import's, and not the launch's


HANGS = "import time\ndef wait_for_ever():\n    time.sleep(300)\nwait_for_ever()\n"
STOPS = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"


@pytest.mark.parametrize("module", [HANGS, STOPS], ids=["hangs", "is stopped"])
def test_an_importer_that_does_not_get_on_is_told(module: str, make: clusters.Make, library: Path) -> None:
    (library / "slowly.py").write_text(module)
    limits: dict[str, Any] = {"hang_timeout": 2.0} if module is HANGS else {"options": {"start_timeout": 2.0}}
    job = clusters.fit(make("import slowly\n", processes=2, **limits), wait=False)
    assert clusters.await_terminal(job) == "Failed" and job.failure is not None
    if module is HANGS:
        lines = str(job.failure.places).splitlines()
        assert [line.partition(":")[0] for line in lines] == ["algo-1, rank 0", "algo-1, rank 1"]
        assert all("importing" in line for line in lines)
    else:
        said = "for rank 0, rank 1 has imported nothing for 2 s: it is stopped (SIGSTOP)"
        assert f"the process that imports modules {said}" in job.describe()["FailureReason"]


def test_one_importer_serves_all_hosts_of_the_machine_and_the_next_attempt(make: clusters.Make) -> None:
    """And signals reach the scripts that were forked."""
    script = """
    import slowly
    import os, signal, sys, time
    import aid
    first = os.environ["FLEETFIT_ATTEMPT"] == "0"
    print("where", slowly.PID, sys.argv, os.getcwd() == os.path.dirname(os.path.abspath(__file__)), flush=True)
    aid.mark(f"there-{aid.RANK}")
    if first and aid.RANK == 1:
        aid.wait_for("there-0")
        os._exit(3)
    if not first:
        signal.signal(signal.SIGTERM, lambda *given: sys.exit(print("saved", flush=True)))
        aid.mark(f"ready-{aid.RANK}")
    time.sleep(300)
    """
    policy = FailurePolicy(max_failures=1, cooldown=(0, 0))
    job = make.start(script, hosts=2, processes=1, ready=2, options={"failure_policy": policy})
    snapshot = clusters.Snapshot(job)
    job.stop()
    assert clusters.await_terminal(job) == "Stopped"
    snapshot.await_end()
    assert clusters.printed(job).count("saved") == 2
    lines = [line.text for line in job.log_lines() if line.text.startswith("where ")]
    assert len(lines) == 4 and len({line.split()[1] for line in lines}) == 1
    assert all(line.endswith("True") for line in lines)
    assert sorted(seconds > 0 for seconds in told(job, "seconds")) == [False, False, False, True]
