"""Progress on a terminal and off it."""

from __future__ import annotations

import io
import os
import pty
import re
import threading

import pytest

from estimators.provision.progress import StepProgress


def test_plain_lines_off_a_terminal() -> None:
    stream = io.StringIO()
    progress = StepProgress(stream, total=2)
    with progress.step("First"):
        progress.detail("12 files")
    with pytest.raises(ValueError, match="no"), progress.step("Second"):
        raise ValueError("no")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/2] First ..."
    assert lines[1].startswith("[1/2] First done in ")
    assert lines[1].endswith(" s: 12 files")
    assert lines[3].startswith("[2/2] Second failed after ")
    assert "\x1b" not in stream.getvalue()


def read_all(descriptor: int) -> str:
    """What was written to a terminal whose other end is closed."""
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:
        pass  # EIO is how a terminal says that its other end is closed
    return b"".join(chunks).decode()


def test_one_line_is_rewritten_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    drawn = threading.Event()

    class Watched(io.TextIOWrapper):
        def flush(self) -> None:
            super().flush()
            drawn.set()

    with Watched(os.fdopen(theirs, "wb", buffering=0), encoding="utf-8", write_through=True) as stream:
        progress = StepProgress(stream, total=1)
        with progress.step("Horovod"):
            progress.detail("compiling 34/72")
            drawn.clear()
            assert drawn.wait(timeout=30)
    shown = read_all(ours)
    os.close(ours)
    assert shown.count("\n") == 1
    assert re.search(r"\r\x1b\[K\[1/1\] Horovod: compiling 34/72 \(\d+ s\)", shown)
    assert re.search(r"done in \d+\.\d s: compiling 34/72", shown)
