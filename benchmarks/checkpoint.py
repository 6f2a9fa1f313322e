"""What asynchronous checkpointing at the automatic interval costs, as a share of the step time.

One process trains one model in blocks, alternately with and without the Checkpointer's callback. A block with it ends
when as many saves have been made as whole intervals have passed since it began, that is, when the next save would be
due: neither more nor fewer than a long training would have in that time. A block without it takes as long.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from container.checkpoint import Checkpointer
from container.distributed.tensorflow.callbacks import KerasCallback

_STEP = "step, ms"
_PROCESSOR = "processor, ms"
_BAR = Bar(limit=3.5)
#: A block takes at least so many seconds, and one interval.
_SECONDS = 10.0
#: Saves before the first block: the first ones meet fresh memory, and the interval settles.
_SETTLING = 3
#: Batches at the beginning of each block's ``fit`` that do not count.
_LEAD = 5
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Size:
    """A model to be saved: a perceptron of these layers, the input included."""

    layers: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many it has."""
        return sum((before + 1) * after for before, after in zip(self.layers, self.layers[1:], strict=False))


SIZES = (Size((64, 300, 256, 10)), Size((512, 1152, 2048, 1000, 10)))


class Block(KerasCallback):
    """Times the steps of one ``fit`` from its ``_LEAD``-th batch until it is told to end.

    Args:
        over: Called before each batch with its number within the block; whether the block ends.
    """

    def __init__(self, over: Callable[[int], bool]) -> None:
        self._over = over
        self._begin = self._processor = 0.0
        self.steps = 0
        self.seconds = 0.0
        self.processor_s = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Look at the clock."""
        if batch < _LEAD or self.steps:
            return
        if batch == _LEAD:
            self._begin, self._processor = time.perf_counter(), time.process_time()
        if self._over(batch - _LEAD):
            self.seconds = time.perf_counter() - self._begin
            self.processor_s = time.process_time() - self._processor
            self.steps = batch - _LEAD
            self.model.stop_training = True


class Training:
    """One model that is trained on, block after block.

    Args:
        size: The model.
        folder: For the checkpoints.
        seconds: What a block takes at least.
    """

    def __init__(self, size: Size, folder: Path, seconds: float) -> None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        layers = tf.keras.layers
        first, *hidden, last = size.layers
        self._model = tf.keras.Sequential(
            [layers.Input([first]), *(layers.Dense(units, activation="relu") for units in hidden), layers.Dense(last)]
        )
        self._model.compile(
            tf.keras.optimizers.Adam(), loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        batch = (tf.random.normal([_BATCH, first]), tf.random.uniform([_BATCH], maxval=last, dtype=tf.int32))
        self._batches = tf.data.Dataset.from_tensors(batch).repeat().prefetch(2)
        self._seconds = seconds
        self._checkpointer = Checkpointer(folder)
        self._saver = self._checkpointer.callback()
        self._steps = 0
        self._block_s = seconds
        #: How long each save held the training up, in seconds.
        self.held_up: list[float] = []
        #: The bytes that a save writes.
        self.bytes = self._checkpointer.state_bytes(self._model)
        assert self._model.count_params() == size.parameters

    def settle(self) -> None:
        """Compile, and save until the interval is what it will be."""
        self._fit(Block(lambda step: step >= _LEAD))
        self._saver.set_model(self._model)
        self._saver.on_train_begin()
        self._with(_SETTLING)
        self.held_up.clear()

    def with_saves(self) -> Numbers:
        """A block with the Checkpointer's callback."""
        return self._with(max(1, math.ceil(self._seconds / self._checkpointer.schedule.interval_s)))

    def without(self) -> Numbers:
        """A block without it, as long as the last one with it."""
        until: list[float] = []

        def over(step: int) -> bool:
            if not until:
                until.append(time.perf_counter() + self._block_s)
            return time.perf_counter() >= until[0]

        return self._fit(Block(over))

    def close(self) -> None:
        """Finish the last write."""
        self._checkpointer.close()

    def _with(self, saves: int) -> Numbers:
        checkpointer, schedule = self._checkpointer, self._checkpointer.schedule
        made = 0

        def over(step: int) -> bool:
            nonlocal made
            number = self._steps + step + 1
            if made == saves and schedule.due(number) and checkpointer.idle:
                return True
            known, began = checkpointer.progress, time.perf_counter()
            self._saver.on_train_batch_end(number - 1)
            self._saver.on_train_batch_begin(number)
            if checkpointer.progress is not known:
                made += 1
                self.held_up.append(time.perf_counter() - began)
            return False

        block = Block(over)
        found = {**self._fit(block), "saves": float(saves), "interval, s": schedule.interval_s}
        self._steps += block.steps + 1
        self._block_s = block.seconds
        return found

    def _fit(self, block: Block) -> Numbers:
        self._model.fit(self._batches, steps_per_epoch=1 << 40, verbose=0, callbacks=[block])
        return {
            _STEP: 1e3 * block.seconds / block.steps,
            _PROCESSOR: 1e3 * block.processor_s / block.steps,
            "seconds": block.seconds,
            "steps": float(block.steps),
        }


def share(with_saves: Sequence[Numbers], without: Sequence[Numbers], of: str = _STEP) -> list[float]:
    """By how many percent the saves raise a number, by round."""
    return [100 * (ours[of] / theirs[of] - 1) for ours, theirs in zip(with_saves, without, strict=True)]


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    rows, samples = [], {}
    quiet = Quiet(options.patience)
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder:
            training = Training(size, Path(folder), options.seconds or _SECONDS)
            training.settle()
            ways = {"with": training.with_saves, "without": training.without}
            values = harness.alternate(rounds, ways, quiet, warm_up=0)
            training.close()
        with_saves = values["with"]
        interval = statistics.median(numbers["interval, s"] for numbers in with_saves)
        saves = sum(int(numbers["saves"]) for numbers in with_saves)
        what = (
            f"asynchronous checkpointing, {size.parameters / 1e6:.1f} M parameters: {saves} saves of "
            f"{training.bytes / 1e6:.1f} MB, every {interval:.1f} s"
        )
        # The processor time of a step hardly depends on others' load, but does not see what waits.
        for kind, of, bar in (("share of step time", _STEP, _BAR), ("share of processor time", _PROCESSOR, None)):
            beside = {f"{way}, ms": statistics.median(n[of] for n in of_way) for way, of_way in values.items()}
            if of is _STEP:
                beside["a save holds up, ms"] = 1e3 * statistics.median(training.held_up)
            rows.append(
                Row(
                    what=f"{what}; {kind}",
                    estimate=median_with_interval(share(with_saves, values["without"], of)),
                    unit="%",
                    bar=bar,
                    beside=beside,
                )
            )
        samples[f"{size.parameters} parameters"] = {
            "bytes": training.bytes,
            "held_up_s": training.held_up,
            "blocks": {way: [dict(numbers) for numbers in of_way] for way, of_way in values.items()},
        }
    harness.record("checkpoint", rows, samples, quiet, dry=options.dry)
