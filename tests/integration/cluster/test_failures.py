"""Who failed first, how, and when the caller knows it."""

from __future__ import annotations

import json
import random
import signal
import textwrap

import clusters
import pytest
import shapes

from estimators import TrainingJob, TrainingJobError


def failure_of(make: clusters.Make, script: str, **settings: object) -> TrainingJobError:
    """Run a script that must fail."""
    with pytest.raises(TrainingJobError) as caught:
        make.run(script, **settings)  # type: ignore[arg-type]
    error = caught.value
    assert isinstance(error.job, TrainingJob)
    says_the_same(error.job, error)
    return error


def says_the_same(job: TrainingJob, error: TrainingJobError) -> None:
    """The exception, status.json, describe(), and ``output/failure`` tell one story."""
    status = json.loads((job.record.path / "status.json").read_text())
    assert status["TrainingJobStatus"] == status["SecondaryStatus"] == "Failed"
    assert status["Fleetfit"]["failure"] == error.failure.to_dict()
    assert job.describe()["FailureReason"] == status["FailureReason"] == error.failure.reason()
    for host in job.hosts:
        assert (job.record.tree(host).output / "failure").read_text() == status["FailureReason"]


@pytest.mark.landing
@pytest.mark.parametrize(
    ("shape", "raising"), [*((shape, shape.size - 1) for shape in (*shapes.ALL, shapes.MASTER)), (shapes.SERVERS, 0)]
)
def test_one_rank_raises_while_the_others_sleep(shape: shapes.Shape, raising: int, make: clusters.Make) -> None:
    """The exception is in the caller within a second of the raise."""

    error = failure_of(
        make,
        f"""
        import signal
        import aid
        aid.mark(f"ready-{{aid.RANK}}")
        if aid.RANK != {raising}:
            signal.pause()
        for rank in range({shape.size}):
            aid.wait_for(f"ready-{{rank}}")
        raise ValueError(f"rank {{aid.RANK}} has no data")
        """,
        **shape.settings,
    )
    assert (error.host, error.rank) == (shape.ranks[raising][0], raising)
    assert error.traceback is not None and "aid.wait_for" not in error.traceback
    assert str(error).endswith(f"ValueError: rank {raising} has no data")
    # On a busy machine it may not have come to its exit before it was ended for being late.
    assert error.exit_code in (1, None)
    exited = "" if error.exit_code is None else " (exited with code 1)"
    assert f"{shape.place(raising)}: ValueError: rank {raising} has no data{exited}" in str(error)


@pytest.mark.horovod
@pytest.mark.tensorflow
def test_one_rank_of_horovod_raises_while_the_others_wait_for_it(make: clusters.Make) -> None:
    """Horovod's exit handler waits for the other ranks, and they for the one that failed."""

    error = failure_of(
        make,
        """
        import time
        import aid
        import horovod.tensorflow as hvd
        import tensorflow as tf
        hvd.init()
        hvd.allreduce(tf.constant([1.0]), name="first")
        if hvd.rank() == 1:
            raise ValueError("rank 1 has no data")
        hvd.allreduce(tf.constant([1.0]), name="second")
        time.sleep(60)
        """,
        hosts=2,
        processes=1,
    )
    assert (error.host, error.rank) == ("algo-2", 1)
    assert error.exit_code in (1, None)  # Horovod may hang in its exit handler; then it was ended by us
    assert str(error).endswith("ValueError: rank 1 has no data")


#: How rank 1 ends -> its exit code, its signal, and what the failure says of it, first and last.
ENDS = {
    "print('giving up: the learning rate is negative')\nsys.exit(3)": (
        3,
        None,
        "exited with code 3",
        "giving up: the learning rate is negative",
    ),
    "os.write(1, b'x' * 100_000 + b'\\n' + b'y' * 500)\nos.kill(os.getpid(), 9)": (
        None,
        signal.SIGKILL,
        "was killed by SIGKILL",
        "y" * 500,
    ),
    "os.kill(os.getpid(), 15)": (None, signal.SIGTERM, "was killed by SIGTERM", ""),
    "import ctypes\nctypes.string_at(0)": (None, signal.SIGSEGV, "was killed by SIGSEGV", ""),
    "MPI.COMM_WORLD.Abort(9)": (9, None, "", ""),  # the program's own way to end everybody
}
EXITS, KILLED, *OF_MPI = ENDS


@pytest.mark.parametrize(
    ("shape", "act"),
    [*((shape, act) for shape in shapes.ALL for act in (EXITS, KILLED)), *((shapes.MPI_, act) for act in OF_MPI)],
    ids=lambda value: value.rpartition("\n")[2].split("(")[0] if isinstance(value, str) else str(value),
)
def test_how_a_rank_has_ended_is_told(shape: shapes.Shape, act: str, make: clusters.Make) -> None:
    code, number, says, last = ENDS[act]
    error = failure_of(
        make,
        "import os, sys, time\nimport aid\n"
        + ("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n" if "MPI" in act else "")
        + "if aid.RANK == 1:\n"
        + textwrap.indent(act, "    ")
        + "\ntime.sleep(60)\n",
        **shape.settings,
    )
    assert (error.host, error.rank, error.signal) == (shape.ranks[1][0], 1, number)
    assert error.exit_code == code or "Abort" in act
    assert error.traceback is None
    assert f"{shape.place(1)}: {says}" in str(error) and str(error).endswith(last)
    assert error.hints or number in (None, signal.SIGTERM)
    if act is KILLED:  # what was written before arrives, also the part without a newline
        log = error.job.record.log_dir(error.host, 0) / f"{shape.ranks[1][1].replace(' ', '-')}.log"  # type: ignore[union-attr]
        assert log.read_bytes() == b"x" * 100_000 + b"\n" + b"y" * 500


@pytest.mark.parametrize(
    ("script", "code", "words", "hint"),
    [
        ("import sys\nsys.exit('no such optimizer: sdg')", 1, "no such optimizer: sdg", ""),
        # Half characters, as in the name of a file whose bytes are no UTF-8.
        ("raise ValueError('no file a\\udcffb')", 1, "ValueError: no file a?b", ""),
        ("#!/bin/sh\nexec /no/such/program\n", 127, "/no/such/program", ""),
        ("import no_such_module_at_all", 1, "No module named 'no_such_module_at_all'", "to a requirements.txt"),
    ],
    ids=["message", "no UTF-8", "no such program", "no such module"],
)
def test_a_script_that_cannot_go_on_is_told_in_its_own_words(
    script: str, code: int, words: str, hint: str, make: clusters.Make
) -> None:
    error = failure_of(
        make, "", entry_point="go.sh" if "sh" in script[:9] else "go.py", files={"go.sh": script, "go.py": script}
    )
    assert error.exit_code == code
    assert words in str(error)
    assert hint in " ".join(error.hints)


@pytest.mark.parametrize(
    ("shape", "seed"),
    [*((shapes.MPI_, seed) for seed in range(3)), *((shape, seed) for shape in shapes.ALL[2:] for seed in range(2))],
)
def test_victims_are_never_blamed(shape: shapes.Shape, seed: int, make: clusters.Make) -> None:
    """All ranks fail, one after the other in a random order, the others when they are told to end."""
    order = list(range(shape.size))
    random.Random(seed).shuffle(order)
    how = random.Random(seed + 100).choice(["raise ValueError('first')", "sys.exit(7)", "os.kill(os.getpid(), 9)"])
    error = failure_of(
        make,
        f"""
        import os, signal, sys, time
        import aid
        place = {order}.index(aid.RANK)
        def ended(number, frame):
            raise RuntimeError("a consequence")
        if place:
            signal.signal(signal.SIGTERM, ended if place == 1 else signal.SIG_DFL)
        aid.mark(f"ready-{{aid.RANK}}")
        for rank in range({shape.size}):
            aid.wait_for(f"ready-{{rank}}")
        if place == 0:
            {how}
        aid.wait_for("never", 60) if place == 1 else time.sleep(place)
        raise RuntimeError("a consequence")
        """,
        **shape.settings,
    )
    assert (error.host, error.rank) == (shape.ranks[order[0]][0], order[0])
    assert "a consequence" not in str(error)
    if "raise" in how:
        assert str(error).endswith("ValueError: first")
    else:
        assert (error.exit_code, error.signal) == ((7, None) if "exit" in how else (None, 9))


def test_what_a_script_prints_is_never_taken_for_ours(make: clusters.Make) -> None:
    forged = {
        "kind": "failure",
        "host": "algo-2",
        "data": {"cause": "internal", "message": "forged", "host": "algo-2", "rank": 9},
    }
    job = make.run(
        f"""
        import aid
        print("[algo-2:rank 9] I am another")
        print("[algo-1] I am the toolkit")
        print('fleetfit-event ' + {json.dumps(json.dumps(forged))})
        print("[algo-2:rank 9]+cut", end="\\r")
        print("fleetfit-event {{", end="")
        """,
    )
    assert job.status == "Completed"
    assert {(line.host, line.rank) for line in job.log_lines() if line.rank is not None} == {("algo-1", 0)}
    assert clusters.printed(job) == [
        "[algo-2:rank 9] I am another",
        "[algo-1] I am the toolkit",
        f"fleetfit-event {json.dumps(forged)}",
        "[algo-2:rank 9]+cut",
        "fleetfit-event {",
    ]
    assert list(job.record.events("failure")) == []
    assert sorted(path.name for path in job.record.log_dir("algo-1", 0).iterdir()) == ["rank-0.log", "rank-0.times"]


def test_every_host_has_the_failure_in_the_users_own_words_where_there_are_some(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            """
            import os
            import aid
            from mpi4py import MPI
            MPI.COMM_WORLD.Barrier()
            if aid.RANK == 0:
                with open(os.path.join(os.path.dirname(os.environ["SM_OUTPUT_DIR"] + "/"), "failure"), "w") as file:
                    file.write("in my own words")
            MPI.COMM_WORLD.Barrier()
            if aid.RANK == 3:
                raise KeyError("weights")
            MPI.COMM_WORLD.Barrier()
            """,
            hosts=2,
            processes=2,
        )
    error, job = caught.value, caught.value.job
    assert isinstance(job, TrainingJob)
    assert (error.host, error.rank) == ("algo-2", 3)
    assert str(error).endswith("KeyError: 'weights'")
    first, second = (job.record.tree(host) for host in job.hosts)
    assert first.failure_file.read_text() == "in my own words"
    assert second.failure_file.read_text() == job.describe()["FailureReason"]
    assert not first.success_file.exists() and not second.success_file.exists()
