"""The digits and the Horovod script, as a user runs them: in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import launching
import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "entrypoints"
MPIRUN = Path(sys.prefix) / "bin" / "mpirun"


def run(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command without the SageMaker variables of whoever runs the tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "SAGEMAKER_"))}
    return subprocess.run(
        [str(argument) for argument in argv], env={**inherited, **environment}, capture_output=True, text=True
    )


def run_python(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program that imports TensorFlow."""
    arguments, chosen = [str(argument) for argument in argv], {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    return run(*forked.command(arguments, launching.environment(**chosen)), **launching.environment(**chosen))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared data set."""
    output = tmp_path_factory.mktemp("digits")
    made = run(sys.executable, SCRIPTS / "prepare_digits.py", "--output", output)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().endswith("written")
    return output


def test_entrypoints_is_no_package() -> None:
    # A module of that name on PyPI is imported by Jupyter tools and must not be shadowed.
    assert not (SCRIPTS / "__init__.py").exists()


@pytest.mark.tensorflow
def test_shards(digits: Path) -> None:
    assert len(list((digits / "train").iterdir())) == 8
    assert len(list((digits / "validation").iterdir())) == 2
    script = """
import collections, glob, json, sys
import tensorflow as tf
features = {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
found = {}
for channel in ("train", "validation"):
    files = sorted(glob.glob(f"{sys.argv[1]}/{channel}/*"))
    (batch,) = tf.data.TFRecordDataset(files).batch(10_000).map(lambda raw: tf.io.parse_example(raw, features))
    counts = collections.Counter(batch["label"].numpy().tolist())
    pixels = batch["image"].numpy()
    found[channel] = [len(pixels), min(counts.values()), max(counts.values()), float(pixels.min()), float(pixels.max())]
print(json.dumps(found))
"""
    shown = run_python("-c", script, digits)
    found = json.loads(shown.stdout)
    # 1,797 images, every digit in its share, pixels from 0 to 1.
    assert found == {"train": [1437, 139, 146, 0.0, 1.0], "validation": [360, 35, 37, 0.0, 1.0]}


@pytest.mark.tensorflow
def test_complete_data_is_left_alone_and_damaged_data_is_made_again(digits: Path) -> None:
    shard = digits / "validation" / "digits-00001-of-00002.tfrecord"
    whole, written = shard.read_bytes(), shard.stat().st_mtime_ns
    again = run(sys.executable, SCRIPTS / "prepare_digits.py", "--output", digits)
    assert again.stdout.strip().endswith("already complete")
    assert shard.stat().st_mtime_ns == written
    shard.write_bytes(whole[:-1])
    (digits / ".staged-by-a-crash").mkdir()
    repaired = run(sys.executable, SCRIPTS / "prepare_digits.py", "--output", digits)
    assert repaired.stdout.strip().endswith("written")
    # The same bytes again: the split does not depend on the run.
    assert shard.read_bytes() == whole
    assert sorted(path.name for path in digits.iterdir()) == [".lock", "manifest.json", "train", "validation"]


@pytest.mark.soak
@pytest.mark.horovod
def test_two_ranks_under_plain_mpirun_train_and_resume(digits: Path, tmp_path: Path) -> None:
    if not MPIRUN.exists():
        pytest.skip("there is no mpirun in this environment")
    (tmp_path / "ml").mkdir()
    environment = {
        "SM_CHANNEL_TRAIN": str(digits / "train"),
        "SM_CHANNEL_VALIDATION": str(digits / "validation"),
        "SM_MODEL_DIR": str(tmp_path / "model"),
        "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    command = [MPIRUN, "-np", "2", "--oversubscribe", sys.executable, SCRIPTS / "train_horovod.py"]

    first = run(*command, "--epochs", "8", **environment)
    assert first.returncode == 0, first.stderr
    pattern = r"- loss: ([0-9.]+) - samples_per_second: ([0-9.]+) - val_loss: ([0-9.]+) - val_accuracy: ([0-9.]+)"
    epochs = re.findall(pattern, first.stdout)
    assert len(epochs) == 8, first.stdout  # one line per epoch: rank 0's
    assert float(epochs[-1][-1]) >= 0.95
    assert (tmp_path / "model" / "1" / "saved_model.pb").is_file()
    kept = {path.name for path in (tmp_path / "ml" / "checkpoints").glob("*.index")}
    assert kept == {"ckpt-6.index", "ckpt-7.index", "ckpt-8.index"}

    second = run(*command, "--epochs", "10", **environment)
    assert second.returncode == 0, second.stderr
    assert "ckpt-8" in second.stdout
    epochs = re.findall(pattern, second.stdout)
    assert len(epochs) == 2
    assert float(epochs[-1][-1]) >= 0.96


@pytest.mark.tensorflow
def test_alone_it_says_so_and_trains(digits: Path, tmp_path: Path) -> None:
    arguments = ["--train", digits / "train", "--validation", digits / "validation", "--epochs", "2"]
    alone = run_python(SCRIPTS / "train_horovod.py", *arguments, "--model_dir", tmp_path, "--checkpoint-dir", tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "training in a single process" in alone.stdout
    assert "val_accuracy: 0." in alone.stdout
    assert (tmp_path / "1" / "saved_model.pb").is_file()


@pytest.mark.tensorflow
def test_missing_data_names_the_remedy(tmp_path: Path) -> None:
    shown = run_python(SCRIPTS / "train_horovod.py", "--train", tmp_path)
    assert shown.returncode == 1
    assert "prepare_digits.py" in shown.stderr
