"""A job that makes no progress: who waits, and in what.

Progress is anything that a rank prints or reports. The stacks come from Python's own ``faulthandler``, which the hook
in every rank's interpreter registers (:mod:`container.hook`), so that also a rank that sits in native code answers.
"""

from __future__ import annotations

import linecache
import re
import signal
from pathlib import Path

#: Which signal asks for the stacks: one of the real-time signals, which nothing else is likely to use.
STACK_SIGNAL = int(signal.SIGRTMAX) - 1
#: How long the ranks have to print their stacks, in seconds.
DUMP_TIME = 0.7

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_HEADER = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\):")

#: Words in function names or source lines that name a collective operation.
_COLLECTIVES = re.compile(
    r"\b\w*(all_?reduce|all_?gather|reduce_?scatter|broadcast|bcast|barrier|all_?to_?all|synchronize|join|recv|send|"
    r"wait)\w*\b",
    re.IGNORECASE,
)


def main_stack(text: str) -> list[tuple[str, int, str]]:
    """The frames of the main thread in the last dump, innermost first, as ``(file, line, function)``.

    faulthandler prints the main thread last.
    """
    frames: list[tuple[str, int, str]] = []
    for line in text.splitlines():
        if _HEADER.search(line):
            frames = []
            continue
        match = _FRAME.match(line)
        if match is not None:
            frames.append((match["file"], int(match["line"]), match["function"]))
    return frames


def waiting_in(text: str, code_dir: Path) -> str | None:
    """Say in a phrase where the main thread is: the user's own innermost line, and the operation it waits in.

    Args:
        text: The end of what the rank printed.
        code_dir: Where the user's code is.

    Returns:
        ``train.py:12 in step: hvd.allreduce(x)``, or None when there is no dump.
    """
    frames = main_stack(text)
    if not frames:
        return None
    own = next((frame for frame in frames if Path(frame[0]).is_relative_to(code_dir)), None)
    path, number, function = own or frames[0]
    shown = str(Path(path).relative_to(code_dir)) if own else path
    phrase = f"{shown}:{number} in {function}"
    source = linecache.getline(path, number).strip()
    if source:
        phrase += f": {source[:120]}"
    elsewhere = next(
        (name for _, _, name in frames if _COLLECTIVES.search(name) and name != function and name not in source), None
    )
    return f"{phrase} (waiting in {elsewhere})" if elsewhere else phrase
