"""Who failed first, how, and when the caller knows it."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import clusters
import pytest
import shapes

from estimators import ConfigurationError, TrainingJob, TrainingJobError


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


@shapes.every
def test_a_rank_that_exits_with_a_code(shape: shapes.Shape, make: clusters.Make) -> None:
    error = failure_of(
        make,
        """
        import sys, time
        import aid
        if aid.RANK == 1:
            print("giving up: the learning rate is negative")
            sys.exit(3)
        time.sleep(60)
        """,
        **shape.settings,
    )
    assert (error.host, error.rank, error.exit_code, error.signal) == (shape.ranks[1][0], 1, 3, None)
    assert error.traceback is None
    assert f"{shape.place(1)}: exited with code 3" in str(error)
    assert str(error).endswith("giving up: the learning rate is negative")


def test_a_message_instead_of_an_exit_code(make: clusters.Make) -> None:
    error = failure_of(make, "import sys\nsys.exit('no such optimizer: sdg')")
    assert error.exit_code == 1
    assert str(error).endswith("no such optimizer: sdg")


@pytest.mark.parametrize(
    ("shape", "number"),
    [
        *((shape, number) for shape in shapes.ALL for number in (signal.SIGKILL, signal.SIGTERM)),
        *((shapes.MPI_, number) for number in (signal.SIGSEGV, signal.SIGABRT)),
    ],
)
def test_a_signal_is_reported_as_that(number: signal.Signals, shape: shapes.Shape, make: clusters.Make) -> None:
    error = failure_of(
        make,
        f"""
        import os, time
        import aid
        if aid.RANK == 1:
            os.kill(os.getpid(), {int(number)})
        time.sleep(60)
        """,
        **shape.settings,
    )
    assert (error.host, error.rank, error.exit_code, error.signal) == (shape.ranks[1][0], 1, None, number)
    assert f"{shape.place(1)}: was killed by {number.name}" in str(error)
    assert error.hints or number is signal.SIGTERM


def test_a_crash_in_native_code(make: clusters.Make) -> None:
    error = failure_of(make, "import ctypes\nctypes.string_at(0)", processes=2)
    assert error.signal == signal.SIGSEGV
    assert any("SIGSEGV is a crash in native code" in hint for hint in error.hints)


def test_a_script_that_cannot_be_started_names_what_is_missing(make: clusters.Make) -> None:
    error = failure_of(
        make, "", hosts=2, processes=1, entry_point="go.sh", files={"go.sh": "#!/bin/sh\nexec /no/such/program\n"}
    )
    assert "/no/such/program" in str(error)
    assert error.exit_code == 127


def test_a_syntax_error_is_the_users_traceback(make: clusters.Make) -> None:
    """Of a module: a script that does not compile is refused before anything starts."""
    error = failure_of(make, "import aid\nexec(compile('def f(:', 'module.py', 'exec'))\n", processes=2)
    assert str(error).endswith("SyntaxError: invalid syntax")
    assert error.exit_code == 1
    with pytest.raises(
        ConfigurationError, match=r"does not compile, so nothing was started:\n  File \"train.py\", line 1"
    ):
        failure_of(make, "def f(:\n    pass\n")


def test_text_that_is_no_utf_8_is_told_as_far_as_it_can_be(make: clusters.Make) -> None:
    """Half characters, as in the name of a file whose bytes are no UTF-8."""
    error = failure_of(make, "import aid\nraise ValueError('no file a\\udcffb')")
    assert "ValueError: no file a?b" in str(error)


def test_a_missing_module_comes_with_a_hint(make: clusters.Make) -> None:
    error = failure_of(make, "import no_such_module_at_all")
    assert any("add no_such_module_at_all to a requirements.txt" in hint for hint in error.hints)
    assert str(error).endswith("ModuleNotFoundError: No module named 'no_such_module_at_all'")


@pytest.mark.parametrize(
    ("shape", "seed"),
    [*((shapes.MPI_, seed) for seed in range(6)), *((shape, seed) for shape in shapes.ALL[2:] for seed in range(3))],
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


def test_the_users_own_failure_file_is_kept(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            """
            import os, sys
            with open(os.path.join(os.path.dirname(os.environ["SM_OUTPUT_DIR"] + "/"), "failure"), "w") as file:
                file.write("in my own words")
            sys.exit(5)
            """,
            processes=1,
        )
    job = caught.value.job
    assert isinstance(job, TrainingJob)
    assert job.record.tree("algo-1").failure_file.read_text() == "in my own words"
    assert caught.value.exit_code == 5


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


def test_a_failure_is_written_once_on_every_host(make: clusters.Make) -> None:
    error = failure_of(
        make,
        """
        import aid
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        if aid.RANK == 3:
            raise KeyError("weights")
        MPI.COMM_WORLD.Barrier()
        """,
        hosts=2,
        processes=2,
    )
    assert (error.host, error.rank) == ("algo-2", 3)
    assert str(error).endswith("KeyError: 'weights'")
    trees = [error.job.record.tree(host) for host in ("algo-1", "algo-2")]  # type: ignore[union-attr]
    assert not any(tree.success_file.exists() for tree in trees)


@shapes.every
def test_a_job_that_ends_well_says_so_on_every_host(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.run("print('done')", **shape.settings)
    for host in ("algo-1", "algo-2"):
        tree = job.record.tree(host)
        assert tree.success_file.exists() and not tree.failure_file.exists()


def test_a_rank_that_leaves_mpi_with_an_error_on_exit(make: clusters.Make) -> None:
    """MPI_Abort is the program's own way to end everybody: the rank that called it is named."""
    error = failure_of(
        make,
        """
        import time
        import aid
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 2:
            MPI.COMM_WORLD.Abort(9)
        time.sleep(60)
        """,
        hosts=2,
        processes=2,
    )
    assert (error.host, error.rank) == ("algo-2", 2)


@pytest.mark.parametrize("server", ["algo-1", "algo-2"])
def test_a_parameter_server_that_is_killed_is_the_failure(server: str, make: clusters.Make) -> None:
    shape = shapes.SERVERS
    job = make.start(
        """
        import time
        import aid
        aid.mark(f"ready-{aid.RANK}")
        time.sleep(60)
        """,
        ready=shape.size,
        **shape.settings,
    )
    snapshot = clusters.Snapshot(job)
    snapshot.find("server", server).kill(signal.SIGKILL)
    assert clusters.await_terminal(job) == "Failed"
    assert job.failure is not None and (job.failure.host, job.failure.process) == (server, "ps")
    assert job.describe()["FailureReason"].startswith(f"{server}, ps: was killed by SIGKILL")
    assert snapshot.left() == []


def test_a_worker_of_parameter_servers_may_end_before_the_chief(make: clusters.Make) -> None:
    """The job is over when the chief is; what a worker's script does then is no failure."""
    job = make.run(
        """
        import time
        import aid
        if aid.RANK == 0:
            aid.wait_for("ended-1")
            aid.wait_for("ended-2")
            print("the chief is done")
        else:
            print("a worker is done")
            aid.mark(f"ended-{aid.RANK}")
        """,
        **shapes.SERVERS.settings,
    )
    assert job.status == "Completed"
    assert [clusters.printed(job, rank)[-1] for rank in (0, 1, 2)] == ["the chief is done", *["a worker is done"] * 2]


def test_a_deleted_working_directory_of_the_caller(
    make: clusters.Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job does not depend on where the caller stands."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    estimator = make("print('fine')", processes=1)
    folder.rmdir()
    assert clusters.fit(estimator, logs=False).status == "Completed"
