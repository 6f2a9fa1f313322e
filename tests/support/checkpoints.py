"""Checkpoints of a few files."""

from __future__ import annotations

from container.checkpoint import Progress
from container.checkpoint.store import CheckpointContents


def contents(step: int, content: bytes | None = None, **more: object) -> CheckpointContents:
    data = content if content is not None else bytes([step % 256]) * 5000
    files = {"one.bin": [memoryview(data)], "two.bin": [memoryview(b"head"), memoryview(data)]}
    return CheckpointContents(progress=Progress(step=step), files=files, **more)  # type: ignore[arg-type]
