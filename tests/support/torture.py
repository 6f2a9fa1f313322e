"""Run a test many times, half of them with a busy loop on each core, and say how often it failed and how.

    python tests/support/torture.py N TEST [ARGUMENT OF PYTEST …]

A test that is skipped has not been tried.

Each time is a process of its own, so nothing is left of the one before. What a failed one printed is kept.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import rerun

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
    done, code = 0, 0
    while done < times:
        where = "under load" if done % 2 else "idle"
        log = folder / f"{done + 1}.log"
        start = time.monotonic()
        try:
            with load() if done % 2 else contextlib.nullcontext(), log.open("wb") as file:
                code = rerun.run(command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
            break
        said = log.read_text(errors="replace")
        if code in _NOT_BEGUN or (code == 0 and not re.search(r"\b\d+ passed\b", said)):
            print(f"{said}\nIt did not run.", file=sys.stderr)
            return code or 1
        done += 1
        text = f"{done} of {times}, {where}: {time.monotonic() - start:.1f} s"
        if code == 0:
            log.unlink()
            print(text, flush=True)
            continue
        failed[where] += 1
        how.update(reasons(said))
        print(f"{text}, FAILED: {log}", flush=True)
    total = sum(failed.values())
    counts = ", ".join(f"{count} {where}" for where, count in failed.items())
    print(f"{done - total} passed, {total} failed ({counts})")
    for line, count in how.most_common():
        print(f"{count:4} × {line}")
    with contextlib.suppress(OSError):  # there are logs in it
        folder.rmdir()
    return code if done < times else 1 if total else 0


#: pytest's exit codes when it could not begin: no other run will.
_NOT_BEGUN = (2, 3, 4, 5)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _times(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"N is a number of runs, at least 1, got {text!r}")
    return int(text)


def _test(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("which test? make torture TEST=tests/integration/cluster/test_stop.py N=20")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="torture", usage="make torture TEST=FILE[::NAME] [N=100] [PYTEST='-k WORD']")
    parser.add_argument("times", type=_times)
    parser.add_argument("test", type=_test)
    given, others = parser.parse_known_args()
    sys.exit(main(given.times, [given.test, *others]))
