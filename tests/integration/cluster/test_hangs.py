"""A job without progress ends, and says where each rank waits; one that only takes its time goes on."""

from __future__ import annotations

import os
import signal

import clusters
import pytest
import shapes

from estimators import TrainingJobError

#: What rank 0 of Horovod prints when a rank does not take part.
STALL = """
import os
WARNING = (
    b"[2026-11-21 15:16:15. 76460: W /build/horovod/common/stall_inspector.cc:107] One or more tensors were submitted "
    b"to be reduced, gathered or broadcasted by subset of ranks. \\nMissing ranks:\\n1: [gradient, loss]\\n"
)
"""


@shapes.every
def test_a_silent_job_says_where_each_rank_is(shape: shapes.Shape, make: clusters.Make) -> None:
    """Horovod's warnings are no progress, and say whom it waits for."""
    job = make.start(
        STALL
        + """
import time
import aid

def wait_for_ever():
    while True:
        if aid.RANK == 0:
            os.write(2, WARNING)
        time.sleep(0.5)

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
    assert "Horovod waits for rank 1, which has not submitted gradient, loss." in job.failure.hints
    assert any(line.startswith("Missing ranks:") for line in clusters.printed(job, 0))
    where = str(job.failure.places).splitlines()
    for rank in range(shape.size):
        [line] = [line for line in where if line.startswith(f"{shape.place(rank)}: ")]
        assert "in wait_for_ever: time.sleep(0.5)" in line
        assert any("most recent call first" in text for text in clusters.printed(job, rank))
    assert len(where) == shape.size, where  # servers wait by nature
    assert snapshot.left() == []


def test_who_cannot_say_where_it_is_lives_on_and_is_named(make: clusters.Make) -> None:
    """A rank waits in MPI_Finalize, when its Python has gone; one is another program; one and a host are stopped."""
    job = make.start(
        """
        import os, time
        import aid
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        aid.mark(f"ready-{aid.RANK}")
        if aid.RANK == 1:
            os.execvp("sleep", ["sleep", "300"])
        if aid.RANK:
            time.sleep(300)
        """,
        ready=6,
        hosts=2,
        processes=3,
        hang_timeout=3,
    )
    snapshot = clusters.Snapshot(job)
    snapshot.rank(2).kill(signal.SIGSTOP)
    snapshot.find("toolkit", "algo-2").kill(signal.SIGSTOP)
    clusters.await_terminal(job)
    assert job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message
    first, *others = str(job.failure.places).splitlines()
    assert first.startswith(
        "algo-1, rank 0: it has no stack to show. Either Python has already shut down in this process and"
    )
    assert others == [
        "algo-1, rank 1: it has no stack to show: the process is not Python but sleep",
        "algo-1, rank 2: it is stopped (SIGSTOP); SIGCONT resumes it",
        "algo-2: the host's training process did not answer (it is stopped, or the machine is overloaded)",
    ]
    assert "where each rank was:\nalgo-1, rank 0: it has no stack" in str(TrainingJobError(job, job.failure))
    snapshot.await_end()


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


def test_importing_and_one_rank_that_prints_are_progress_and_the_same_failing_import_is_not(
    make: clusters.Make,
) -> None:
    """Each of the modules takes a second, and nothing is printed; then one is tried for ever that is not there."""
    job = make.start(
        """
        import importlib, time
        import aid
        for number in range(4 * aid.RANK):
            importlib.import_module(f"slow_{number}")
        aid.mark(f"imported-{aid.RANK}")
        aid.wait_for("imported-1")
        for step in range(8 * aid.RANK):
            print(step, flush=True)
            time.sleep(0.5)
        aid.mark(f"ready-{aid.RANK}")
        while True:
            try:
                import never_there
            except ImportError:
                time.sleep(0.1)
        """,
        files={f"slow_{number}.py": "import time\ntime.sleep(1)\n" for number in range(4)},
        ready=2,
        hang_timeout=2.5,
        **shapes.NONE.settings,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "no rank has printed or reported anything for 2.5 s" in job.failure.message
