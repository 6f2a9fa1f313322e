"""Trials that are distributed jobs on one Ray cluster: Ray Tune's, and those of fleetfit's own tuner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import clusters
import places
import pytest
import ray_cluster as rays

from estimators import FailurePolicy, TrainingJob
from estimators.tuner import CategoricalParameter, HyperparameterTuner

#: The score rises with the rate, from where the checkpoint was; each epoch is kept.
TRAIN = """
import argparse, os, time
import numpy as np
from container.checkpoint import Checkpointer, SingleProcess
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
rate = parser.parse_args().rate
if os.environ["SM_CURRENT_HOST"] != "algo-1":
    time.sleep(300)
arrays = {"score": np.zeros(1)}
checkpointer = Checkpointer(cluster=SingleProcess())
restored = checkpointer.restore(arrays)
print(f"began={restored.epoch if restored else 0};", flush=True)
for epoch in range(restored.epoch if restored else 0, 1000):
    arrays["score"] += rate
    checkpointer.save(arrays, epoch=epoch + 1, wait=True)
    print(f"epoch={epoch + 1}; score={arrays['score'][0]:.3f};", flush=True)
    time.sleep(0.5)
"""

#: Two trials of two hosts each. When both have reported, the worse one goes on from the other's checkpoint.
TUNE = """
import json, os, sys
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from estimators import TensorFlow
from estimators.tuning import ray_tune

folder, address = sys.argv[1:]
# Trials have their jobs' records on their nodes.
home = {"FLEETFIT_HOME": os.environ["FLEETFIT_HOME"]}
ray.init(address, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": home})
estimator = TensorFlow(
    entry_point="train.py", source_dir=f"{folder}/code", instance_type="ray", instance_count=2, model_dir=False,
    metric_definitions=[{"Name": name, "Regex": f"{name}=([0-9.]+);"} for name in ("began", "epoch", "score")],
)
trainable = ray_tune.trainable(estimator, metric="score")
population = PopulationBasedTraining(
    time_attr="training_iteration", perturbation_interval=2, synch=True, quantile_fraction=0.5,
    resample_probability=0.0, hyperparam_mutations={"rate": [0.1, 1.0]},
)
tuner = tune.Tuner(
    trainable,
    param_space={"rate": tune.grid_search([0.1, 1.0])},
    tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=population),
    run_config=tune.RunConfig(storage_path=f"{folder}/tune", stop={"training_iteration": 4}, verbose=0),
)
found = []
for one in tuner.fit():
    table = one.metrics_dataframe
    found.append({"scores": list(table["score"]), "began": list(table["began"]), "error": str(one.error)})
print("found", json.dumps(found))
"""


#: Two are equally good, and end when they may; the third one is worse, begins when the others may end, and never ends.
CHOICES = """
import argparse, os, time
import aid
parser = argparse.ArgumentParser()
parser.add_argument("--choice")
choice = parser.parse_args().choice
enough = os.path.join(aid.MARKS, "enough")
while choice == "bad" and not os.path.exists(enough):
    time.sleep(0.1)
while choice == "bad" or not os.path.exists(enough):
    print(f"score={0.1 if choice == 'bad' else 0.9}", flush=True)
    time.sleep(0.2)
print("score=0.9")
"""


@pytest.fixture
def make(ray_cluster: rays.Cluster, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose hosts need a whole node of the cluster each."""
    return places.on_ray(ray_cluster, tmp_path, home, resources_per_host={"CPU": rays.CORES})


def runs(job: TrainingJob) -> bool:
    return any(job.record.events("process_started"))


def has_restarted(job: TrainingJob) -> bool:
    return any(job.record.events("restart"))


def waited_for_room(job: TrainingJob) -> bool:
    return any("the job waits for" in line.text for line in job.log_lines())


def test_a_tuner_has_distributed_trials_on_one_cluster_where_a_node_is_lost(
    make: clusters.Make, ray_cluster: rays.Cluster
) -> None:
    """Four nodes have room for two trials of two hosts: the third one waits, and so does the one that loses a node."""
    estimator = make(CHOICES, hosts=2, options={**make._options, "failure_policy": FailurePolicy(max_failures=1)})
    searched = HyperparameterTuner(
        estimator, "score", {"choice": CategoricalParameter(["one", "two", "bad"])},
        metric_definitions=[{"Name": "score", "Regex": r"score=(\S+)"}],
        strategy="ASHA", max_jobs=3, max_parallel_jobs=3, reduction_factor=2,
    )  # fmt: skip
    searched.fit(wait=False)
    clusters.until(lambda: len(searched.trials()) == 3 and sum(map(runs, searched.trials())) >= 2)
    ray_cluster.kill(ray_cluster.busy()[0])
    clusters.until(lambda: any(map(has_restarted, searched.trials())))
    make.mark("enough")
    searched.wait()
    assert searched.latest_tuning_job is not None
    found = {json.loads(row["values"]["choice"]): row["state"] for row in searched.latest_tuning_job.trials()}
    assert found == {"one": "Completed", "two": "Completed", "bad": "Pruned"}
    [hit] = filter(has_restarted, searched.trials())
    assert any(waited_for_room(job) for job in searched.trials() if job.name != hit.name)
    assert {event.attempt for event in hit.record.events("process_started")} == {0, 1}
    clusters.until(lambda: not ray_cluster.pids())


@pytest.mark.soak  # it needs Ray Tune, which brings pyarrow
def test_trials_of_ray_tune_are_jobs_that_exchange_their_checkpoints(
    ray_cluster: rays.Cluster, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-c", TUNE, str(tmp_path), ray_cluster.address], capture_output=True, text=True, timeout=140
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.partition("found ")[2])
    assert [one["error"] for one in found] == ["None", "None"]
    for one in found:
        # Both are paused and go on from where the better one was: the other one's own scores are tenths.
        assert one["began"][-1] >= 1 and one["scores"][-1] > 2
        assert one["scores"] == sorted(set(one["scores"])), "it went on from an older checkpoint than the last"
    jobs = [TrainingJob.attach(path.name) for path in (home / "jobs").iterdir()]
    assert len(jobs) >= 4 and {job.status for job in jobs} == {"Stopped"}
    clusters.until(lambda: not ray_cluster.pids())
