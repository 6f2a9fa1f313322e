"""Reading a channel in Pipe mode, and the same file as TensorFlow reads it.

All ways run in this process, in turns; the host agent that feeds the FIFO is a process of its own, as in a job.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

#: Bytes of a record -> bytes of the file. The smaller, the longer it takes.
_FILES = {200: 60 << 20, 3_000: 300 << 20, 100_000: 400 << 20}
_BAR = Bar(limit=0.95, at_least=True)
_GENERATOR_SIZE = 3_000
_GENERATOR_BAR = Bar(limit=10.0, at_least=True)
#: The plain reader is slow: a part of the file is enough for it.
_GENERATOR_SHARE = 20
_BATCH = 256
#: A larger batch's memory goes back to the kernel and comes anew each time, which takes longer than the reading.
_BATCH_BYTES = 4 << 20
_RATE = "records/s"


class Channel:
    """A file of records as a channel, with its agent.

    Args:
        folder: For everything.
        size: Bytes of a record.
        total: Bytes of the file, about.
    """

    def __init__(self, folder: Path, size: int, total: int) -> None:
        import tensorflow as tf

        self.folder = folder
        self._size = size
        self.file = folder / "data"
        self.records = total // size
        with tf.io.TFRecordWriter(str(self.file)) as writer:
            content = os.urandom(size + size // 8)
            for number in range(self.records):
                writer.write(content[: size + number % (size // 8) - size // 16])  # not all of one length
        config = folder / "input" / "config"
        config.mkdir(parents=True)
        (config / "inputdataconfig.json").write_text(json.dumps({"train": {"TrainingInputMode": "Pipe"}}))
        channels = folder / "channels.json"
        channels.write_text(json.dumps({"train": {"uri": str(self.file), "mode": "Pipe"}}))
        program = harness.HERE.parent / "container" / "__main__.py"
        options = ["--base-dir", folder, "--channels", channels, "--host", "algo-1"]
        self._agent = subprocess.Popen([sys.executable, "-I", program, "agent", "pipe", *options])

    def close(self) -> None:
        """End the agent."""
        self._agent.send_signal(signal.SIGTERM)
        self._agent.wait()

    def native(self) -> Numbers:
        """TensorFlow's own reader on the file."""
        import tensorflow as tf

        return self._timed(tf.data.TFRecordDataset(str(self.file), buffer_size=256 << 10), self.records)

    def pipe(self) -> Numbers:
        """From the FIFO."""
        from container.pipe_dataset import PipeModeDataset

        base = self.folder
        found = PipeModeDataset("train", "TFRecord", base / "state", base / "input" / "data", base / "input" / "config")
        return self._timed(found, self.records)

    def generator(self) -> Numbers:
        """From a FIFO too, by the plain reader: Python takes each record apart."""
        import tensorflow as tf

        count = self.records // _GENERATOR_SHARE
        fifo = self.folder / "plain"
        os.mkfifo(fifo)
        writer = subprocess.Popen(["sh", "-c", 'cat "$0" > "$1" 2> /dev/null', self.file, fifo])

        def records() -> Iterator[bytes]:
            with open(fifo, "rb") as stream:
                while head := stream.read(12):
                    (length,) = struct.unpack_from("<Q", head)
                    yield stream.read(length)
                    stream.read(4)

        found = tf.data.Dataset.from_generator(records, output_signature=tf.TensorSpec([], tf.string))
        numbers = self._timed(found.take(count), count)
        writer.wait()
        fifo.unlink()
        return numbers

    def _timed(self, dataset: Any, expected: int) -> Numbers:
        import tensorflow as tf

        size = max(1, min(_BATCH, _BATCH_BYTES // self._size))
        batches = dataset.batch(size).map(lambda batch: tf.shape(batch, tf.int64)[0]).prefetch(2)
        # There is nothing to tune, and the end of an iterator may wait for the tuner's thread to wake, for as long as
        # all of the reading took.
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = batches.with_options(options)
        began, used = time.monotonic(), time.process_time()
        count = int(batches.reduce(tf.constant(0, tf.int64), lambda total, more: total + more))
        seconds, used = time.monotonic() - began, time.process_time() - used
        if count != expected:
            raise RuntimeError(f"{count} records were read, and there are {expected}")
        return {_RATE: count / seconds, "processor_s": used}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    rounds = options.alternations or 10
    rows: list[Row] = []
    samples: dict[str, Any] = {}
    quiet = Quiet(options.patience)
    for size, total in _FILES.items():
        with tempfile.TemporaryDirectory(prefix="fleetfit-bench-") as folder:
            channel = Channel(Path(folder), size, total)
            try:
                ways = {"TFRecordDataset": channel.native, "PipeModeDataset": channel.pipe}
                if size == _GENERATOR_SIZE:
                    ways["from_generator"] = channel.generator
                values = harness.alternate(rounds, ways, quiet)
            finally:
                channel.close()
        rates = {way: [numbers[_RATE] for numbers in found] for way, found in values.items()}
        samples[f"{size} B"] = values
        for other, bar in (("TFRecordDataset", _BAR), ("from_generator", _GENERATOR_BAR)):
            if other in rates:
                pairs = zip(rates["PipeModeDataset"], rates[other], strict=True)
                rows.append(
                    Row(
                        what=f"records/s of {size:,} B, PipeModeDataset ÷ {other}",
                        estimate=median_with_interval([mine / theirs for mine, theirs in pairs]),
                        unit="",
                        bar=bar,
                        beside={
                            f"{way}, records/s": statistics.median(rates[way]) for way in ("PipeModeDataset", other)
                        },
                    )
                )
    harness.record("pipe", rows, samples, quiet, dry=options.dry)
