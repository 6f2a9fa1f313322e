"""Hundreds of jobs, each with one process killed at a random moment: nothing is left, and the record says what was."""

from __future__ import annotations

import collections
import contextlib
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import clusters
import pytest

from estimators import RecordError, TrainingJob

pytestmark = pytest.mark.soak

#: Seconds in which everything must be gone.
GONE = 2.0
#: A rank's wrapper has a few milliseconds before it reports itself, in which only mpirun can notice its end, and takes
#: its time (2.4 s).
GONE_AFTER_WRAPPER = 4.0

SCRIPTS = {
    "plain": "import time\ntime.sleep(300)\n",
    "busy": "import time\nend = time.time() + 300\nwhile time.time() < end:\n    print('x' * 100)\n",
    "mpi": "import time\nfrom mpi4py import MPI\nwhile True:\n    MPI.COMM_WORLD.allreduce(1)\n    time.sleep(0.01)\n",
    "stubborn": (
        "import os, signal, subprocess, sys, time\n"
        "for number in (1, 2, 15):\n    signal.signal(number, signal.SIG_IGN)\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(300)']\n"
        "subprocess.Popen(sleep)\n"
        "subprocess.Popen(sleep, start_new_session=True, env={}, stdout=subprocess.DEVNULL)\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execve(sys.executable, sleep, {})\n"
        "    os._exit(0)\n"
        "time.sleep(300)\n"
    ),
    "short": "import time\ntime.sleep(0.2)\n",
}


def everything(job: TrainingJob) -> list[clusters.Process]:
    """The job's processes now, with its supervisor."""
    pid = job.record.read_status().get("Fleetfit", {}).get("supervisor_pid")
    found = {one.pid: one for one in clusters.marked(job.name)}
    if pid is not None and (owner := clusters.process(pid)) is not None and "supervisor" in " ".join(owner.argv):
        found[pid] = owner
        found.update({one.pid: one for one in clusters.below(pid) if "provenance" not in " ".join(one.argv)})
    return list(found.values())


@pytest.mark.parametrize("seed", [14, "new"], indirect=True)
def test_random_kills(
    make: clusters.Make, count: Callable[[int], int], record: Callable[..., None], tmp_path: Path, seed: int
) -> None:
    choice = random.Random(seed)
    jobs = count(200)
    gone: list[float] = []
    statuses: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    estimators = {
        (script, hosts, processes): make(
            SCRIPTS[script] if processes or script != "mpi" else SCRIPTS["plain"], hosts=hosts, processes=processes
        )
        for script in SCRIPTS
        for hosts in (1, 2, 3)
        for processes in (None, 1, 2)
    }
    runtime_folders = set(Path(tempfile.gettempdir()).glob("fleetfit-*"))
    for number in range(jobs):
        key = choice.choice(list(estimators))
        name = f"kill-{number}"
        attached = choice.random() < 0.25
        moment = choice.random() ** 2 * 1.5
        what = f"job {number} of seed {seed}: {key}, {'attached, ' if attached else ''}{moment:.3f} s"
        caller = None
        if attached:
            caller = clusters.Caller(f"estimator.fit(job_name={name!r}, logs=False)", estimators[key], tmp_path / "c")
            job = caller.job(name)
        else:
            job = clusters.fit(estimators[key], wait=False, job_name=name)
        time.sleep(moment)
        try:
            family = everything(job)
        except RecordError:
            family = []  # a caller that is still filling it
        victims: list[clusters.Process] = list(family)
        if caller is not None and (own := clusters.process(caller.process.pid)) is not None:
            victims.append(own)
        if victims:
            victim = choice.choice(victims)
            kind = victim.kind if victim.kind != "other" else "helper or supervisor"
            if caller is not None and victim.pid == caller.process.pid:
                kind = "caller"
            kinds[kind] += 1
            what += f", {kind}"
            before = {*everything(job), *family}
            with contextlib.suppress(ProcessLookupError):
                victim.kill(signal.SIGKILL)
            start = time.monotonic()
            expected_to_end = kind not in ("helper or supervisor",) or "supervisor" in " ".join(victim.argv)
            if not expected_to_end:  # a script's own helper is the script's own business
                job.stop(grace=0)
                start = time.monotonic()
            while left := [one for one in {*before, *clusters.marked(name)} if one.alive and one is not caller]:
                left = [one for one in left if "supervisor" not in " ".join(one.argv)]
                if not left:
                    break
                if time.monotonic() - start > 15:
                    problems.append(f"{what}: alive after 15 s: {[one.argv[:6] for one in left]}")
                    break
                time.sleep(0.005)
            gone.append(time.monotonic() - start)
            if gone[-1] > (GONE_AFTER_WRAPPER if kind == "wrapper" else GONE):
                problems.append(f"{what}: took {gone[-1]:.2f} s")
        else:  # there is nothing to kill yet
            kinds["nothing"] += 1
            job.stop(grace=0)
        try:
            clusters.await_terminal(job)
        except AssertionError:
            problems.append(f"{what}: its status is {job.status}")
            clusters.kill_everything_of(tmp_path / "home")
        statuses[str(job.status)] += 1
        print(what, job.status, *problems[-1:], flush=True)
        if job.status == "Failed" and not job.describe().get("FailureReason"):
            problems.append(f"{what}: failed without a reason")
        if job.status == "Failed" and "fault of fleetfit" in str(job.failure and job.failure.hints):
            problems.append(f"{what}: {job.failure}")
        if caller is not None:
            with contextlib.suppress(Exception):
                caller.process.wait(10)
        if number % 20 == 19:
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
    deadline = time.monotonic() + 5
    while left_folders := _own(set(Path(tempfile.gettempdir()).glob("fleetfit-*")) - runtime_folders):
        if time.monotonic() > deadline:
            problems.append(f"temporary folders are left: {left_folders}")
            break
        time.sleep(0.1)
    record(
        "kills",
        seed=seed,
        jobs=jobs,
        seconds_until_gone={
            "median": statistics.median(gone),
            "p99": sorted(gone)[int(len(gone) * 0.99)],
            "worst": max(gone),
        },
        killed=dict(kinds),
        statuses=dict(statuses),
        problems=problems,
    )
    assert problems == []


def _own(folders: set[Path]) -> list[str]:
    """Those of the folders that hold something of ours and belong to no living process of another job."""
    used = " ".join(
        one.environ.get("FLEETFIT_RUNTIME_DIR", "") for pid in clusters._pids() if (one := clusters.process(pid))
    )
    return [str(path) for path in folders if path.is_dir() and "ports" not in path.name and str(path) not in used]
