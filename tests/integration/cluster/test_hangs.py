"""A job without progress ends, and says where each rank waits; one that only takes its time goes on."""

from __future__ import annotations

import os
import signal

import clusters
import pytest
import shapes
from elastic_jobs import MEETING

from estimators import TrainingJobError


@shapes.every
def test_a_silent_job_says_where_each_rank_is(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.start(
        """
        import time
        import aid

        def wait_for_ever():
            time.sleep(300)

        aid.mark(f"ready-{aid.RANK}")
        wait_for_ever()
        """,
        ready=shape.size,
        hang_timeout=3,
        **shape.settings,
    )
    snapshot = clusters.Snapshot(job)
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message
    where = str(job.failure.places).splitlines()
    for rank in range(shape.size):
        [line] = [line for line in where if line.startswith(f"{shape.place(rank)}: ")]
        assert "in wait_for_ever: time.sleep(300)" in line
        assert any("most recent call first" in text for text in clusters.printed(job, rank))
    assert len(where) == shape.size, where  # servers wait by nature
    assert snapshot.left() == []


#: What rank 0 of Horovod prints when a rank does not take part, as it writes it: in pieces.
STALL = """
def stall():
    import os
    pieces = [
        "[2026-11-21 15:16:15. 76460: ", "W", " ", "/build/horovod/common/stall_inspector.cc", ":107] ",
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks. \\n"
        "Missing ranks:\\n1: [gradient, loss]", "\\n",
    ]
    for piece in pieces:
        os.write(2, piece.encode())
        time.sleep(0.05)
"""


def test_horovods_warnings_are_no_progress_and_say_whom_it_waits_for(make: clusters.Make) -> None:
    job = make.start(
        "import time\nimport aid\n"
        + STALL
        + """
aid.mark(f"ready-{aid.RANK}")
while True:
    if aid.RANK == 0:
        stall()
    time.sleep(0.2)
""",
        ready=2,
        hang_timeout=3,
        **shapes.NONE.settings,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "Horovod waits for rank 1, which has not submitted gradient, loss." in job.failure.hints
    assert any(line.startswith("Missing ranks:") for line in clusters.printed(job, 0))


def test_a_stopped_rank_and_a_toolkit_that_does_not_answer_are_named(make: clusters.Make) -> None:
    job = make.start(
        """
        import time
        import aid
        aid.mark(f"ready-{aid.RANK}")
        time.sleep(300)
        """,
        ready=2,
        hang_timeout=3,
        **shapes.NONE.settings,
    )
    snapshot = clusters.Snapshot(job)
    snapshot.rank(0).kill(signal.SIGSTOP)
    snapshot.find("toolkit", "algo-2").kill(signal.SIGSTOP)
    clusters.await_terminal(job)
    assert job.failure is not None
    assert str(job.failure.places).splitlines() == [
        "algo-1, rank 0: it is stopped (SIGSTOP); SIGCONT resumes it",
        "algo-2: the host's training process did not answer (it is stopped, or the machine is overloaded)",
    ]
    assert "where each rank was:\nalgo-1, rank 0: it is stopped" in str(TrainingJobError(job, job.failure))
    snapshot.await_end()


def test_ranks_without_a_stack_live_on_and_are_told(make: clusters.Make) -> None:
    """One waits in MPI_Finalize, when its Python has gone; one has become another program."""
    job = make.start(
        """
        import os, time
        import aid
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        aid.mark(f"ready-{aid.RANK}")
        if aid.RANK == 1:
            os.execvp("sleep", ["sleep", "300"])
        if aid.RANK == 2:
            time.sleep(300)
        """,
        ready=3,
        processes=3,
        hang_timeout=3,
    )
    clusters.await_terminal(job)
    assert job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message
    first, second, third = str(job.failure.places).splitlines()
    assert first.startswith(
        "algo-1, rank 0: it has no stack to show. Either Python has already shut down in this process and"
    )
    assert second == "algo-1, rank 1: it has no stack to show: the process is not Python but sleep"
    assert third == "algo-1, rank 2: train.py:10 in <module>: time.sleep(300)"


@pytest.mark.horovod
def test_an_elastic_job_that_hangs_says_who_is_asleep_and_who_is_stopped(make: clusters.Make) -> None:
    job = make.start(
        """
        import os, time
        import aid
        aid.mark(f"ready-{os.environ['HOROVOD_RANK']}")
        time.sleep(300)
        """,
        ready=2,
        hosts=2,
        hang_timeout=3,
        distribution={"elastic_horovod": {"enabled": True, "warm": False}},
    )
    snapshot = clusters.Snapshot(job)
    pids = {event.host: event.data["pid"] for event in job.record.events("process_started")}
    [driver] = [one for one in snapshot.members if "elastic" in one.argv and "--least" in one.argv]
    wrapper = snapshot.find("wrapper", "algo-1")
    for pid in (driver.pid, wrapper.pid, pids["algo-2"]):
        os.kill(pid, signal.SIGSTOP)
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message
    stopped = "it is stopped (SIGSTOP); SIGCONT resumes it"
    told = f"the process that started it (pid {wrapper.pid}) is stopped (SIGSTOP) and cannot report the rank's end"
    assert str(job.failure.places).splitlines() == [
        f"Horovod's elastic driver (pid {driver.pid}): {stopped}",
        f"algo-1, rank 0: train.py:5 in <module>: time.sleep(300); {told}",
        f"algo-2, rank 1: {stopped}",
    ]
    assert "most recent call first" in clusters.all_text(job)
    assert not [event for event in job.record.events() if event.kind == "progress"]
    snapshot.await_end()


@pytest.mark.horovod
def test_an_elastic_job_that_waits_for_workers_does_not_hang(make: clusters.Make) -> None:
    """That has a limit of its own."""
    options = {"enabled": True, "processes_per_host": 2, "min_workers": 2, "warm": False, "cooldown": [60, 60]}
    job = make.start(
        MEETING,
        environment={"FAILS": "1"},
        hang_timeout=3,
        distribution={"elastic_horovod": {**options, "elastic_timeout": 6}},
    )
    clusters.await_terminal(job)
    assert job.failure is not None
    assert "too few workers for 6 s (elastic_timeout): 1 of at least 2" in job.failure.message


def test_importing_is_progress_and_the_same_failing_import_is_not(make: clusters.Make) -> None:
    """Each of the modules takes a second, and nothing is printed; then one is tried for ever that is not there."""
    job = make.start(
        """
        import importlib, time
        import aid
        for number in range(6):
            importlib.import_module(f"slow_{number}")
        aid.mark("ready-0")
        while True:
            try:
                import never_there
            except ImportError:
                time.sleep(0.1)
        """,
        files={f"slow_{number}.py": "import time\ntime.sleep(1)\n" for number in range(6)},
        ready=1,
        hang_timeout=3,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message


def test_one_rank_that_says_something_is_progress(make: clusters.Make) -> None:
    job = make.run(
        """
        import time
        import aid
        for step in range(12):
            if aid.RANK == 1:
                print(step, flush=True)
            time.sleep(0.5)
        """,
        hang_timeout=3,
        **shapes.NONE.settings,
    )
    assert job.status == "Completed"


@pytest.mark.parametrize("limit", [0, -1, "soon"])
def test_a_limit_that_makes_no_sense_is_refused(limit: object, make: clusters.Make) -> None:
    with pytest.raises(ValueError, match="hang_timeout must be a number of seconds above 0"):
        make("print('never')", hang_timeout=limit)
