"""Real trainings: what they report of themselves, a rank that holds the others up, and the commands that show it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from estimators import MPI, PreflightWarning, Result, TensorFlow, compare
from estimators.cli.main import main
from estimators.cli.tensorboard_server import event_folders
from estimators.client import calibrate

_SLOW_RANK = """
import sys, time

from container import distributed
from container.checkpoint.keras_callback import KerasCallback

if "--fail" in sys.argv:
    raise SystemExit("no such data")


class Slow(KerasCallback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05 if cluster.rank == 1 else 0)


cluster = distributed.init()
import numpy as np
import tensorflow as tf

images, labels = np.ones([64, 8], np.float32), np.zeros([64], np.int64)
model = tf.keras.Sequential([tf.keras.layers.Input([8]), tf.keras.layers.Dense(4)])
model.compile(
    cluster.optimizer(tf.keras.optimizers.SGD(0.01)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(
    cluster.dataset(lambda: tf.data.Dataset.from_tensor_slices((images, labels)), global_batch_size=8),
    epochs=3, verbose=0, callbacks=[Slow(), *cluster.callbacks()],
)
"""


@pytest.mark.tensorflow
@pytest.mark.horovod
def test_a_training_says_what_it_took_and_who_held_it_up(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(_SLOW_RANK)

    def estimator(**hyperparameters: str) -> TensorFlow:
        return TensorFlow(
            entry_point="train.py", source_dir=str(code), instance_type="local_process", distribution=MPI(
                processes_per_host=2
            ), model_dir=False, environment={"TF_USE_LEGACY_KERAS": "1"}, hyperparameters=hyperparameters,
        )  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        comparison = compare({"slow rank": estimator(), "wrong": estimator(fail="yes")}, repeat=1)
    result = comparison["slow rank"].first
    assert result.status == "Completed"
    assert result.steps == 24 and result.global_batch_size == 8
    assert result.model is not None
    assert (result.model.parameters, result.model.gradient_bytes, result.model.tensors) == (36, 144, 2)
    assert result.reduced_bytes == 144 and result.link_bytes == 144
    assert [rank.steps.count for rank in result.ranks] == [23, 23]  # all but the first
    assert result.straggler is not None and result.straggler.rank == 1
    assert result.ranks[0].exchange_s is not None and result.ranks[0].exchange_s > 0.025
    assert all(rank.peak_memory_bytes and rank.peak_memory_bytes > 50 << 20 for rank in result.ranks)
    frame = result.metrics()
    assert list(frame[frame.name == "loss"]["samples"]) == [64, 128, 192]
    assert "slowed the other ranks down" in str(comparison)
    assert "no such data" in str(comparison["wrong"].first.failure_reason)

    # It is saved with the job, whole.
    saved = Result.load(home / "jobs" / result.job_name)
    assert saved.to_dict() == result.to_dict()
    assert saved.provenance["python"]

    # TensorFlow's own reader reads what rank 0 wrote for TensorBoard.
    [folder] = event_folders([result.job_name]).values()
    assert folder == home / "jobs" / result.job_name / "hosts/algo-1/ml/output/tensorboard"
    [file] = (folder / "train").glob("events.out.tfevents.*")
    assert file.stat().st_size > 100

    # The commands.
    assert main(["compare", *(one.job_name for one in comparison.results), "--report", str(tmp_path / "c.html")]) == 0
    shown = capsys.readouterr()
    assert "0 of 1" in shown.out and "no such data" in shown.out
    assert "<svg" in (tmp_path / "c.html").read_text()
    assert main(["report", result.job_name, "-o", str(tmp_path / "r.html")]) == 0
    assert "rank 1 on algo-1" in (tmp_path / "r.html").read_text()
    capsys.readouterr()
    assert main(["report", result.job_name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job_name"] == result.job_name
    assert main(["tensorboard", "--list"]) == 0
    assert capsys.readouterr().out == f"{result.job_name}\t{folder}\n"


@pytest.mark.tensorflow
def test_the_probe_of_calibrate_measures_each_of_its_models(home: Path) -> None:
    comparison = calibrate.measure((), (), ("8,4", "8,6,4"), alone=True, seconds=0.05)
    small, larger = calibrate.observations(comparison)
    assert (small.gradient_bytes, larger.gradient_bytes) == (4 * (8 * 4 + 4), 4 * (8 * 6 + 6 + 6 * 4 + 4))
    assert small.is_alone and larger.is_alone and small.step_s > 0 < larger.step_s


def test_a_script_is_run_under_each_strategy_and_size(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import sys\nassert sys.argv[1:] == ['--epochs', '3'], sys.argv\n")
    told = ["--script", "train.py", "--source-dir", str(tmp_path), "-s", "none", "-n", "1,2", "-H", "epochs=3"]
    assert main(["compare", *told, "--repeat", "2", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["name"] for group in groups] == ["none 1 × 1", "none 2 × 1"]
    runs = sorted((run["created"], run["hosts"], run["status"]) for group in groups for run in group["results"])
    assert [run[1:] for run in runs] == [(hosts, "Completed") for hosts in (1, 2, 2, 1)]


def test_commands_say_what_is_wrong(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status, words in (
        (["compare"], 2, "give the names of jobs"),
        (["compare", "nothing"], 3, "no training job 'nothing'"),
        (["compare", "--script", "train.py"], 2, "--strategy is missing"),
        (["compare", "--script", "train.py", "-s", "mpii"], 2, "Did you mean 'mpi'"),
        (["compare", "--script", "train.py", "-s", "mpi", "-n", "1,x"], 2, "whole numbers"),
        (["compare", "--script", "train.py", "-s", "none", "--report", "none/a.html"], 2, "there is no folder"),
        (["compare", "x", "--price", "ml.m5.large=cheap"], 2, "not a number of dollars"),
        (["report", "nothing"], 3, "no training job 'nothing'"),
        (["report", str(tmp_path / "none.json")], 5, "there is no"),
        (["tensorboard", "--list", "nothing"], 3, "no training job 'nothing'"),
        (["calibrate", "-s", "mpii"], 2, "Did you mean 'mpi'"),
        (["calibrate", "--seconds", "0"], 2, "over 0"),
    ):
        assert main(arguments) == status, arguments
        assert words in capsys.readouterr().err, arguments
