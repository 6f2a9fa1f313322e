"""Run a test many times, half of them with a busy loop on each core, and say how often it failed and how.

    python tests/support/torture.py N TEST [ARGUMENT OF PYTEST …]

Each time is a process of its own, so nothing is left of the one before. What a failed one printed is kept.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Ends with the process that has started it, also when that is killed.
_BUSY = "import ctypes, signal\nctypes.CDLL(None).prctl(1, signal.SIGKILL)\nwhile True: pass"


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A busy loop on each core."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def reasons(output: str) -> list[str]:
    """The lines of pytest's summary that say what failed; numbers that differ from run to run are left out."""
    found = re.findall(r"^(?:FAILED|ERROR) .*$", output, re.MULTILINE)
    return [re.sub(r"\d+(\.\d+)?", "#", line) for line in found] or output.strip().splitlines()[-1:]


def main(times: int, arguments: list[str]) -> int:
    """Run it and return the exit code: 0 if no run has failed."""
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    failed: dict[str, int] = {"idle": 0, "under load": 0}
    how: collections.Counter[str] = collections.Counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *arguments]
    for number in range(times):
        where = "under load" if number % 2 else "idle"
        log = folder / f"{number + 1}.log"
        start = time.monotonic()
        with load() if number % 2 else contextlib.nullcontext(), log.open("wb") as file:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT).returncode
        text = f"{number + 1} of {times}, {where}: {time.monotonic() - start:.1f} s"
        if code == 0:
            log.unlink()
            print(text, flush=True)
            continue
        if code in (4, 5):  # pytest could not begin: no other run will
            print(log.read_text(errors="replace"), file=sys.stderr)
            return code
        failed[where] += 1
        how.update(reasons(log.read_text(errors="replace")))
        print(f"{text}, FAILED: {log}", flush=True)
    total = sum(failed.values())
    counts = ", ".join(f"{count} {where}" for where, count in failed.items())
    print(f"{times - total} passed, {total} failed ({counts})")
    for line, count in how.most_common():
        print(f"{count:4} × {line}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
