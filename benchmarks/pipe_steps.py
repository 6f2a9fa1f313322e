"""Steps per second of a digits classifier: from a channel in Pipe mode, and from data in memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_RATE = "steps/s"
_BAR = Bar(limit=0.97, at_least=True)
_BATCH = 64
_EPOCHS = 20


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    # Before TensorFlow is imported, as in entrypoints/train_pipe.py.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    rounds = options.alternations or 10
    quiet = Quiet(options.patience)
    with tempfile.TemporaryDirectory(prefix="fleetfit-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        script = harness.HERE.parent / "entrypoints" / "prepare_digits.py"
        subprocess.run([sys.executable, script, "--output", folder / "digits"], check=True, stdout=subprocess.DEVNULL)
        stack.callback(_end, _start_agent(folder))
        ways = _ways(folder)
        values = harness.alternate(rounds, ways, quiet)
    rates = {way: [numbers[_RATE] for numbers in found] for way, found in values.items()}
    pairs = zip(rates["Pipe mode"], rates["in memory"], strict=True)
    row = Row(
        what="steps/s on digits, Pipe mode ÷ data in memory, one process",
        estimate=median_with_interval([mine / theirs for mine, theirs in pairs]),
        unit="",
        bar=_BAR,
        beside={f"{way}, steps/s": statistics.median(of_way) for way, of_way in rates.items()},
    )
    harness.record("pipe-steps", [row], {"steps_per_second": rates}, quiet, dry=options.dry)


def _start_agent(folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "input" / "config"
    config.mkdir(parents=True)
    (config / "inputdataconfig.json").write_text(json.dumps({"train": {"TrainingInputMode": "Pipe"}}))
    channels = folder / "channels.json"
    channels.write_text(json.dumps({"train": {"uri": str(folder / "digits" / "train"), "mode": "Pipe"}}))
    program = harness.HERE.parent / "container" / "__main__.py"
    options = ["--base-dir", folder, "--channels", channels, "--host", "algo-1"]
    return subprocess.Popen([sys.executable, "-I", program, "agent", "pipe", *options])


def _end(agent: subprocess.Popen[bytes]) -> None:
    agent.send_signal(signal.SIGTERM)
    agent.wait()


def _ways(folder: Path) -> dict[str, Callable[[], Numbers]]:
    import tensorflow as tf

    from container import distributed
    from container.pipe_dataset import PipeModeDataset

    cluster = distributed.init()
    keras = tf.keras
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input([64]),
            layers.Reshape([8, 8, 1]),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    @distributed.vectorized  # as in entrypoints/train_pipe.py
    def parse(records: Any) -> Any:
        features = {
            "image": tf.io.FixedLenFeature([64], tf.float32),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_example(records, features)
        return example["image"], example["label"]

    files = sorted(str(path) for path in (folder / "digits" / "train").iterdir())
    arrays = next(iter(tf.data.TFRecordDataset(files).batch(1 << 20).map(parse)))

    def pipe() -> Any:
        place = folder / "input"
        return PipeModeDataset("train", "TFRecord", folder / "state", place / "data", place / "config")

    def timed(make: Callable[[], Any], how: Callable[..., Any] | None) -> Numbers:
        batches = cluster.dataset(make, global_batch_size=_BATCH, parse=how, shuffle=1024, remainder="drop")
        began = time.monotonic()
        history = model.fit(batches, epochs=_EPOCHS, verbose=0)
        seconds = time.monotonic() - began
        return {_RATE: len(history.epoch) * (len(arrays[1]) // _BATCH) / seconds}

    return {
        "in memory": lambda: timed(lambda: tf.data.Dataset.from_tensor_slices(arrays), None),
        "Pipe mode": lambda: timed(pipe, parse),
    }
