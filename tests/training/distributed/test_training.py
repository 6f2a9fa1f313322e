"""Scripts in ``entrypoints/`` without fleetfit around them; ``training/entrypoints`` runs all under ``fit()``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import launching
import pytest

pytestmark = pytest.mark.tensorflow

ACCURACY = 0.95
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not launching.MPIRUN.exists(), reason="mpi4py is not installed"
)


@pytest.fixture
def channels(prepared_digits: Path) -> dict[str, str]:
    """The digits, as a job's channels."""
    folder = prepared_digits
    return {"SM_CHANNEL_TRAIN": str(folder / "train"), "SM_CHANNEL_VALIDATION": str(folder / "validation")}


def script(name: str, *arguments: str) -> list[str]:
    return [str(launching.SCRIPTS / name), *arguments]


def accuracy(text: str, name: str = "val_accuracy") -> float:
    """The last one that was printed."""
    found = re.findall(rf"{name}: ([0-9.]+)", text)
    assert found, text
    return float(found[-1])


def trained(ended: launching.Ended, name: str = "val_accuracy") -> None:
    assert ended.code == 0, ended.text
    assert accuracy(ended.text, name) >= ACCURACY, ended.text


@launching.needs_horovod
@pytest.mark.horovod
@pytest.mark.soak
def test_one_script_with_horovod_goes_on_after_an_interruption(channels: dict[str, str], tmp_path: Path) -> None:
    variables = {**channels, "SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "SM_MODEL_DIR": str(tmp_path)}
    first = launching.mpirun(2, script("train.py", "--epochs=4", "--compression=fp16"), **variables)
    assert first.code == 0, first.text
    second = launching.mpirun(2, script("train.py", "--epochs=12", "--compression=fp16"), **variables)
    trained(second, "validation accuracy")
    assert "Epoch 5/12" in second.text and "Epoch 4/12" not in second.text, second.text
    assert (tmp_path / "1" / "saved_model.pb").is_file()


def test_one_script_alone_tells_its_job_how_far_it_is(channels: dict[str, str]) -> None:
    reading, writing = os.pipe()
    try:
        ended = launching.alone(
            script("train.py", "--epochs=5"),
            pass_fds=[writing],
            FLEETFIT_EVENTS=f"{writing}:{os.fstat(writing).st_ino}",
            **channels,
        )
    finally:
        os.close(writing)
    with os.fdopen(reading) as pipe:
        events = [json.loads(line) for line in pipe]
    trained(ended, "validation accuracy")
    phases = [event["data"]["name"] for event in events if event["kind"] == "phase"]
    assert phases == ["imported", "rendezvous", "first_step", "training_ended"]
    metrics = [event["data"] for event in events if event["kind"] == "metric"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "samples_per_second", "epoch"} <= {
        metric["name"] for metric in metrics
    }
    assert [metric["value"] for metric in metrics if metric["name"] == "epoch"] == list(range(1, 6))
    assert [metric["value"] for metric in metrics if metric["name"] == "val_accuracy"][-1] >= ACCURACY


@needs_mpi
def test_plain_mpi4py(channels: dict[str, str], tmp_path: Path) -> None:
    two = launching.mpirun(2, script("train_mpi4py.py", f"--model_dir={tmp_path}"), **channels)
    trained(two)
    assert "rank 1 of 2" in two.text and (tmp_path / "weights.npy").is_file()
    # Without mpirun, PyPI's Open MPI must be told where it is.
    alone = launching.alone(script("train_mpi4py.py"), OPAL_PREFIX=str(launching.MPIRUN.parent.parent), **channels)
    assert accuracy(alone.text) == accuracy(two.text)


KERAS_3_METRICS = """
import keras, numpy as np, tensorflow as tf
from container import distributed
cluster = distributed.init()
images = np.random.default_rng(0).random([1437, 64], np.float32)
labels = (images[:, 0] > 0.1).astype(np.int64)
def records():
    # As with files, TensorFlow does not know how many there are.
    return tf.data.Dataset.from_tensor_slices((images, labels)).filter(lambda image, label: True)
model = keras.Sequential([keras.layers.Input([64]), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss, metrics=["accuracy"])
for remainder, count in (("drop", 1408), ("pad", 1437)):
    data = cluster.dataset(records, global_batch_size=64, remainder=remainder)
    history = model.fit(data, epochs=2, verbose=0).history
    whole = model.evaluate(images[:count], labels[:count], batch_size=64, verbose=0, return_dict=True)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(history[name], [whole[name]] * 2, rtol=1e-5, err_msg=f"{remainder}: {name}")
"""


def test_keras_3_counts_no_batch_too_many() -> None:
    ended = launching.alone(["-c", KERAS_3_METRICS], TF_USE_LEGACY_KERAS="0")
    assert ended.code == 0, ended.text
