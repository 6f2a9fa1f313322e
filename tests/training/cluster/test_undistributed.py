"""Jobs whose ranks have nothing to do with each other, and those whose ranks only look so."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import clusters
import pytest

from estimators import MPI, CollectiveAllReduce, ParameterServer, TrainingJob, TrainingJobError

APART = "the job was not distributed"


def live(make: clusters.Make, script: str, **settings: Any) -> tuple[str, TrainingJob]:
    """Run a script and return what ``fit()`` printed meanwhile, and the job."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        job = make.run(script, logs=True, **settings)
    return shown.getvalue(), job


def noticed(job: TrainingJob) -> list[str]:
    """What was noticed of it; everywhere the same."""
    found = list(job.result().warnings)
    assert [text for text in job.warnings if text in found] == found
    assert [text for text in job.describe()["Fleetfit"]["warnings"] if text in found] == found
    return found


@pytest.mark.parametrize(
    "distribution",
    [MPI(), CollectiveAllReduce(), ParameterServer(), ParameterServer(cluster_spec="sagemaker")],
    ids=["mpi", "collective_all_reduce", "parameter_server", "sagemaker"],
)
def test_a_script_that_joins_nobody(distribution: Any, make: clusters.Make) -> None:
    shown, job = live(make, "print('I train alone')", hosts=2, distribution=distribution)
    assert job.status == "Completed"
    [text] = noticed(job)
    assert (
        text.startswith(APART) and f"under {distribution.name} none of the" in text and "Looked for: hvd.init()" in text
    )
    assert f"[algo-1] warning: {text}\n" in shown
    table = shown[shown.rindex("Completed") :]
    assert "warnings  the job was not distributed" in table


def test_it_fails_where_that_was_asked_for(make: clusters.Make) -> None:
    options = {"on_undistributed": "fail"}
    with pytest.raises(TrainingJobError, match=APART) as raised:
        make.run("print('I train alone')", hosts=2, processes=1, options=options, max_retry_attempts=2)
    job = raised.value.job
    assert job.status == "Failed" and APART in job.describe()["FailureReason"]
    assert APART in job.record.tree("algo-1").failure_file.read_text()
    assert job.result().attempts == 1  # another one would be no better


MPI4PY = "from mpi4py import MPI; print('rank', MPI.COMM_WORLD.Get_rank())"


@pytest.mark.parametrize(
    ("settings", "script"),
    [
        ({"hosts": 2, "processes": 1}, MPI4PY),
        ({"hosts": 2, "processes": 1}, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MPI4PY!r}])"),
        ({"hosts": 2, "processes": 1}, "import os; os._exit(0)"),
        ({"hosts": 2}, "print('each by itself')"),
        ({"hosts": 1, "processes": 1}, "print('one rank')"),
        ({"hosts": 2, "processes": 1, "entry_point": "run.sh", "files": {"run.sh": "python -I train.py\n"}}, MPI4PY),
    ],
    ids=["mpi4py", "child", "no farewell", "no strategy", "one rank", "from a shell"],
)
def test_false_alarms(settings: dict[str, Any], script: str, make: clusters.Make) -> None:
    job = make.run(script, options={"on_undistributed": "fail"}, **settings)
    assert job.status == "Completed" and noticed(job) == []


def test_a_job_that_fails_or_is_stopped_has_its_own_reason(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError, match="exited with code 3") as raised:
        make.run("raise SystemExit(3)", hosts=2, processes=1, options={"on_undistributed": "fail"})
    assert noticed(raised.value.job) == []
    job = make.start(
        "import aid, time; aid.mark(f'ready-{aid.RANK}'); time.sleep(600)",
        hosts=2, processes=1, ready=2, options={"on_undistributed": "fail", "stop_grace": 5.0},
    )  # fmt: skip
    job.stop()
    job.wait(logs=False)
    assert job.status == "Stopped" and noticed(job) == []


HOROVOD = """
import horovod.tensorflow as hvd
hvd.init()
print(hvd.rank())
"""

KERAS_3 = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
hvd.allreduce(tf.constant(1.0))
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=2)
"""

OUTSIDE = """
import numpy as np
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=2)
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("script", "distribution", "words"),
    [
        pytest.param(
            HOROVOD, MPI(), "joined each other (Horovod) and then exchanged nothing",
            marks=[pytest.mark.horovod, pytest.mark.soak],
        ),
        pytest.param(
            KERAS_3, MPI(), "DistributedOptimizer reduced no gradient", marks=[pytest.mark.horovod, pytest.mark.soak]
        ),
        (OUTSIDE, CollectiveAllReduce(), "exchanged nothing"),
    ],
    ids=["hvd.init", "Horovod's optimizer under Keras 3", "MultiWorkerMirrored, with the model outside"],
)  # fmt: skip
def test_ranks_that_joined_and_trained_apart(script: str, distribution: Any, words: str, make: clusters.Make) -> None:
    job = make.run(script, hosts=2, distribution=distribution)  # Keras 3 is the default
    assert job.status == "Completed"
    [text] = noticed(job)
    assert text.startswith(APART) and words in text


@pytest.mark.tensorflow
@pytest.mark.horovod
def test_one_reduction_at_the_end_is_enough(make: clusters.Make) -> None:
    script = HOROVOD + "import tensorflow as tf\nprint(float(hvd.allreduce(tf.constant(1.0))))\n"
    job = make.run(script, hosts=2, processes=1, options={"on_undistributed": "fail"})
    assert job.status == "Completed" and noticed(job) == []
