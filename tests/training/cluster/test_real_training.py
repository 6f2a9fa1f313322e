"""Clusters that really train with TensorFlow, and what ends them: who is named, and that nothing is left."""

from __future__ import annotations

import signal
from typing import Any

import clusters
import pytest
from imported import told

from estimators import MPI, CollectiveAllReduce, ParameterServer, TrainingJob, TrainingJobError

pytestmark = pytest.mark.tensorflow

COLLECTIVE = CollectiveAllReduce()

#: Trains until something ends it. What rank 1 does after some steps is in ``act``: a hyperparameter, and no text to
#: execute, so that all of them are forked from the same imports.
TRAIN = """
import os, time
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import aid
from container import distributed

cluster = distributed.init()
import tensorflow as tf
keras = tf.keras

def forget_the_others():
    time.sleep(300)

def find_no_data():
    raise ValueError("no data")

class Act(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            aid.mark(f"ready-{aid.RANK}")
            if aid.RANK == 1 and os.environ["SM_HP_ACT"]:
                {"forget": forget_the_others, "raise": find_no_data}[os.environ["SM_HP_ACT"]]()

def records():
    return tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(16)

with cluster.scope():
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    model.compile(optimizer=cluster.optimizer(keras.optimizers.SGD(0.01)), loss="mse")
model.fit(
    cluster.dataset(records, global_batch_size=4),
    steps_per_epoch=cluster.steps_per_epoch(records, global_batch_size=4),
    epochs=1_000_000,
    callbacks=[*cluster.callbacks(report=False), Act()],
    verbose=0,
)
"""


def start(make: clusters.Make, distribution: Any, **settings: Any) -> TrainingJob:
    """A training on two hosts that has made some steps; parameter servers have one chief, which says so."""
    job = clusters.fit(
        make(TRAIN, hosts=2, distribution=distribution, hyperparameters={"act": ""}, **settings), wait=False
    )

    def going() -> None:
        assert job.status == "InProgress", job.describe().get("FailureReason")

    clusters.until((make.marks / "ready-0").exists, check=going)
    return job


def reason(job: TrainingJob, snapshot: clusters.Snapshot) -> str:
    """Why it failed, once all of it has gone."""
    clusters.await_terminal(job)
    assert job.status == "Failed"
    snapshot.await_end()
    return str(job.describe()["FailureReason"])


#: Imports TensorFlow late, and sets only which Keras it has. Says which of the job's processes are forked.
LATE = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
from pathlib import Path
import aid
from container import distributed

def name(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()

def processes():
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(os.getcwd().partition("/hosts/")[0]):
                yield name(entry.name)
        except OSError:
            pass

def main():
    cluster = distributed.init()
    if cluster.size:
        import tensorflow as tf
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    servers = list(processes()).count("fleetfit-server")
    aid.report(parent=name(os.getppid()), servers=servers, keras=type(model).__module__)

main()
"""


@pytest.mark.parametrize(("distribution", "ranks", "servers"), [(MPI(), 2, 0), (ParameterServer(), 1, 2)])
def test_late_imports_and_parameter_servers_are_forked(
    distribution: Any, ranks: int, servers: int, make: clusters.Make
) -> None:
    job = make.run(LATE, hosts=2, distribution=distribution, environment={"FLEETFIT_FORK": "1"})
    said = list(clusters.reports(job).values())
    assert len(said) == ranks and {one["parent"] for one in said} == {"fleetfit-host"}
    assert {one["servers"] for one in said} == {servers} and {one["keras"].partition(".")[0] for one in said} == {
        "tf_keras"
    }
    assert told(job, "unfit") + told(job, "refused") == []
    assert "importer" not in job.describe()["Fleetfit"]


@pytest.mark.parametrize(
    ("kind", "part"), [("server", "algo-2, ps"), pytest.param("worker", "algo-2, worker", marks=pytest.mark.soak)]
)
def test_a_killed_part_of_parameter_servers_is_named_and_not_the_chief_that_misses_it(
    kind: str, part: str, make: clusters.Make
) -> None:
    job = start(make, ParameterServer())
    snapshot = clusters.Snapshot(job)
    (snapshot.find("server", "algo-2") if kind == "server" else snapshot.rank(2)).kill()
    assert reason(job, snapshot).startswith(f"{part}: was killed by SIGKILL")


def test_the_chief_of_a_collective_that_is_killed_is_named(make: clusters.Make) -> None:
    job = start(make, COLLECTIVE)
    snapshot = clusters.Snapshot(job)
    snapshot.rank(0).kill()
    assert reason(job, snapshot).startswith("algo-1, rank 0: was killed by SIGKILL")


@pytest.mark.landing
def test_a_rank_of_a_collective_that_raises_is_named(make: clusters.Make) -> None:
    """The others are in the middle of a common step with it."""
    job = clusters.fit(
        make(TRAIN, hosts=2, distribution=COLLECTIVE, hyperparameters={"act": "raise"}),
        wait=False,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed"
    assert job.describe()["FailureReason"].startswith("algo-2, rank 1: ValueError: no data")
    assert job.describe()["FailureReason"].endswith("ValueError: no data")
    clusters.until(lambda: clusters.marked(job.name) == [])


def test_a_collective_that_is_stopped(make: clusters.Make) -> None:
    """TensorFlow installs handlers of its own; the ranks end all the same, and nobody is to blame."""
    job = start(make, COLLECTIVE)
    snapshot = clusters.Snapshot(job)
    job.stop(wait=True, grace=60)
    assert job.status == "Stopped"
    assert "FailureReason" not in job.describe()
    assert snapshot.left() == []
    ended = {event.rank: event.data["signal"] for event in job.record.events("process_ended")}
    assert set(ended.values()) <= {None, signal.SIGTERM}, ended  # and not by the end of its time


@pytest.mark.parametrize(
    "distribution",
    [
        pytest.param(MPI(processes_per_host=1), marks=[pytest.mark.horovod, pytest.mark.soak]),
        pytest.param(COLLECTIVE, marks=pytest.mark.soak),
    ],
    ids=lambda it: it.name,
)
def test_a_hang_names_who_waits_where(distribution: Any, make: clusters.Make) -> None:
    """One rank does not take part in the common step any more."""
    job = clusters.fit(
        make(
            TRAIN,
            hosts=2,
            distribution=distribution,
            hyperparameters={"act": "forget"},
            hang_timeout=20,
        ),
        wait=False,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed"
    assert job.failure is not None
    assert "no rank has printed or reported anything for 20 s" in job.failure.message
    where = str(job.failure.places)
    lines = {line.split(":")[0]: line for line in where.splitlines()}
    assert "in forget_the_others: time.sleep(300)" in lines["algo-2, rank 1"], where
    assert "model.fit(" in lines["algo-1, rank 0"], where
    assert "(waiting in" in lines["algo-1, rank 0"], where
    for rank in (0, 1):  # every rank's stack is in its log
        assert any("most recent call first" in line for line in clusters.printed(job, rank))
    assert clusters.marked(job.name) == []


@pytest.mark.soak
@pytest.mark.horovod
def test_horovods_own_warnings_do_not_keep_a_hanging_job_alive(make: clusters.Make) -> None:
    job = clusters.fit(
        make(
            """
            import time
            import tensorflow as tf
            import horovod.tensorflow as hvd

            hvd.init()
            if hvd.rank() == 0:
                time.sleep(300)
            hvd.allreduce(tf.constant([2.0]))
            """,
            hosts=2,
            distribution=MPI(processes_per_host=1),
            environment={"HOROVOD_STALL_CHECK_TIME_SECONDS": "2"},
            hang_timeout=20,
        ),
        wait=False,
    )
    clusters.await_terminal(job)
    assert job.status == "Failed" and job.failure is not None
    assert "Horovod waits for rank 0, which has not submitted HorovodAllreduce." in job.failure.hints
    lines = str(job.failure.places).splitlines()
    assert "train.py:8 in <module>: time.sleep(300)" in lines[0]
    assert "train.py:9 in <module>: hvd.allreduce(tf.constant([2.0]))" in lines[1]


@pytest.mark.soak
def test_parameter_servers_of_tensorflow_1s_form(make: clusters.Make) -> None:
    """Master and worker train by themselves; the variable that they share is on a server."""
    job = make.run(
        """
        import json, os, time
        import aid
        import tensorflow.compat.v1 as tf

        tf.disable_eager_execution()
        config = json.loads(os.environ["TF_CONFIG"])
        cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
        server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
        own = f"/job:{task['type']}/task:{task['index']}"
        with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
            tf.train.get_or_create_global_step()
            total = tf.get_variable("total", [], initializer=tf.zeros_initializer())
            add = total.assign_add(1.0, use_locking=True)
        is_master = task["type"] == "master"
        with tf.train.MonitoredTrainingSession(server.target, is_chief=is_master) as session:
            for _ in range(50):
                session.run(add)
            while is_master and session.run(total) < 100:
                time.sleep(0.05)
            aid.report(total=float(session.run(total)), device=total.device)
        """,
        hosts=2,
        distribution=ParameterServer(cluster_spec="sagemaker"),
        max_run=200,
    )
    assert job.status == "Completed", job.describe()
    said = clusters.reports(job)
    assert said[0]["total"] == 100
    assert "/job:ps/" in said[0]["device"] and said[1]["device"] == said[0]["device"]
    assert said[0]["@host"] == "algo-1" and said[1]["@host"] == "algo-2"


#: As Horovod's documented example for Keras has it: the options of its optimizer and of `compile`, and its callbacks.
HOROVODS_EXAMPLE = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
random = np.random.default_rng(hvd.rank())
images = random.random((64, 8, 8, 1), dtype=np.float32)
labels = random.integers(0, 10, 64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(64).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
rate = 0.001 * hvd.size()
optimizer = hvd.DistributedOptimizer(
    tf.optimizers.Adam(rate), backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=optimizer,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=1),
]
model.fit(dataset, steps_per_epoch=4 // hvd.size(), callbacks=callbacks, epochs=2, verbose=0)
print(f"trained by {hvd.size()}")
"""

#: As TensorFlow's tutorial on several workers with Keras has it.
TENSORFLOWS_TUTORIAL = """
import json, os
import numpy as np
import tensorflow as tf

workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.default_rng(0)
images = random.random((64, 8, 8), dtype=np.float32)
labels = random.integers(0, 10, 64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(64).repeat().batch(8 * workers)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
model.fit(dataset, epochs=1, steps_per_epoch=2, verbose=0)
print(f"trained by {workers}")
"""


DOCUMENTED = pytest.mark.parametrize(
    ("script", "distribution"),
    [pytest.param(HOROVODS_EXAMPLE, MPI(), marks=pytest.mark.horovod), (TENSORFLOWS_TUTORIAL, COLLECTIVE)],
    ids=["horovod", "tensorflow"],
)


@DOCUMENTED
def test_the_documented_examples_are_told_which_keras_they_need(
    script: str, distribution: Any, make: clusters.Make
) -> None:
    """They are written for Keras 2; the default is Keras 3."""
    with pytest.raises(TrainingJobError) as error:
        make.run(script, hosts=2, distribution=distribution)
    assert any("environment={'TF_USE_LEGACY_KERAS': '1'}" in hint for hint in error.value.hints), error.value
    assert len(str(error.value).splitlines()) < 40


@pytest.mark.soak
@DOCUMENTED
def test_the_documented_examples_run_with_that(script: str, distribution: Any, make: clusters.Make) -> None:
    job = make.run(script, hosts=2, distribution=distribution, environment={"TF_USE_LEGACY_KERAS": "1"})
    said = {(line.rank, line.text) for line in job.log_lines() if "trained" in line.text}
    assert said == {(0, "trained by 2"), (1, "trained by 2")}
