"""Real host agents over real FIFOs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from container import formats
from container.formats import RecordFormat, recordio, tfrecord

ROOT = Path(__file__).resolve().parents[2]


def encode(record_format: RecordFormat, record: bytes) -> bytes:
    """One record."""
    if record_format is RecordFormat.TFRECORD:
        return tfrecord.encode(record)
    if record_format is RecordFormat.RECORDIO:
        return recordio.encode(record, 12)
    return record + b"\n"


def write_objects(
    folder: Path, counts: Sequence[int], record_format: RecordFormat = RecordFormat.TFRECORD
) -> list[bytes]:
    """Objects of so many records each: ``r0``, ``r1`` … over all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [b"r%d" % number for number in range(sum(counts))]
    left = iter(records)
    for number, count in enumerate(counts):
        content = b"".join(encode(record_format, next(left)) for _ in range(count))
        (folder / f"part-{number:02d}").write_bytes(content)
    return records


def split(record_format: RecordFormat, stream: bytes) -> list[bytes]:
    """A stream's records."""
    framing = formats.framing(record_format)
    ends: list[int] = []
    whole, _ = framing.hop(stream, 0, len(stream), ends)
    assert whole == len(stream)
    return [framing.payload(stream, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


class Agent:
    """The agent of one host."""

    def __init__(self, process: subprocess.Popen[str], base: Path, ranks: int) -> None:
        self.process = process
        self.base = base
        self.ranks = ranks

    def place(self, local_rank: int = 0) -> Path:
        """The folder of a rank's FIFOs."""
        data = self.base / "input" / "data"
        return data / f".rank-{local_rank}" if self.ranks > 1 else data

    def fifo(self, channel: str, epoch: int, local_rank: int = 0) -> Path:
        """An epoch's FIFO, once it is there."""
        path = self.place(local_rank) / f"{channel}_{epoch}"
        deadline = threading.Event()
        for _ in range(2000):
            if path.exists():
                return path
            assert self.process.poll() is None, self.process.communicate()[1]
            deadline.wait(0.01)
        raise AssertionError(f"{path} did not appear")

    def read(self, channel: str = "train", epoch: int = 0, local_rank: int = 0) -> bytes:
        """A whole epoch."""
        return self.fifo(channel, epoch, local_rank).read_bytes()

    def ended(self) -> tuple[int, str]:
        """Wait for the end: exit code and what it said."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@contextlib.contextmanager
def agent(
    base: Path, channels: Mapping[str, Mapping[str, Any]], *, hosts: int = 1, number: int = 0, ranks: int = 1
) -> Iterator[Agent]:
    """A host's agent, ended at the end; its tree has the configuration that SageMaker writes."""
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    described = {
        name: {"TrainingInputMode": "Pipe", "S3DistributionType": values.get("distribution", "FullyReplicated")}
        for name, values in channels.items()
    }
    (config / "inputdataconfig.json").write_text(json.dumps(described))
    file = base / "channels.json"
    file.write_text(json.dumps({name: {"mode": "Pipe", **values} for name, values in channels.items()}))
    words = ["--base-dir", base, "--channels", file, "--host", f"algo-{number + 1}", "--hosts", hosts]
    process = subprocess.Popen(
        [sys.executable, "-I", ROOT / "container" / "__main__.py", "agent", "pipe"]
        + [str(word) for word in (*words, "--number", number, "--ranks", ranks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Agent(process, base, ranks)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def left(base: Path) -> list[str]:
    """FIFOs and notes that are still there."""
    return [name for _, _, names in os.walk(base / "input" / "data") for name in names]
