"""What a container's end says about the cause of a failure."""

from __future__ import annotations

import re
import signal

from container.contract.failures import Cause, Failure
from container.contract.names import cut
from estimators.backends.docker.engine import Ended

_HEADER = "Traceback (most recent call last):"
#: Between the tracebacks of a chain, as Python prints it.
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: The last line of a traceback: ``ValueError: no data``, ``package.Error``.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(?:: .*)?")
#: One whose name says that it is one.
_SURE = re.compile(r"[A-Za-z_][\w.<>]*(?:Error|Exception|Exit|Interrupt|Warning)(?:: .*)?")
#: An exception's name whose message was read as another piece.
_TORN = re.compile(r"^([A-Za-z_][\w.]*)(?:\n+:|:\n)\s*(?=\S)", re.MULTILINE)
#: Characters of an image's own ``output/failure`` that become part of the reason.
_SAID = 600


def end_failure(host: str, ended: Ended, tail: bytes, *, toolkit: bool, said: str = "") -> Failure | None:
    """Return what the backend itself knows of the cause of a container's end, when nothing of ours ended it.

    Args:
        host: The host.
        ended: How it ended.
        tail: The end of what it printed.
        toolkit: Whether our toolkit ran in it, which says itself why it failed.
        said: What an image of others wrote into ``/opt/ml/output/failure``.
    """
    if ended.exit_code == 0:
        return None
    if ended.out_of_memory:
        return Failure(
            cause=Cause.PROCESS,
            message="the container ran out of memory, and the kernel killed one of its processes.",
            host=host,
            exit_code=ended.exit_code,
            hints=(
                "Give the container more memory with RunOptions(backend_options={'memory': '8g'}), or reduce the "
                "script's memory use: smaller batches, fewer processes per host.",
            ),
        )
    if ended.exit_code == 128 + signal.SIGKILL:
        return Failure(
            cause=Cause.PROCESS,
            message="the container was killed from outside (SIGKILL).",
            host=host,
            signal=int(signal.SIGKILL),
        )
    if ended.error:
        return Failure(
            cause=Cause.PROCESS,
            message=f"the container ended: {ended.error.rstrip('.')}.",
            host=host,
            exit_code=ended.exit_code,
        )
    if not toolkit and ended.exit_code != 128 + signal.SIGTERM:
        return _of_others(host, ended, tail.decode("utf-8", "replace"), said.strip())
    return None


def _of_others(host: str, ended: Ended, text: str, said: str) -> Failure:
    """Return why an image without our toolkit failed: the last traceback that it printed, or what it says itself."""
    message = f"the container exited with code {ended.exit_code}"
    traceback = last_traceback(text)
    if traceback is not None:
        message = traceback.splitlines()[-1]
    elif said:
        message = f"{message}: {cut(said, _SAID)}"
    else:
        message += "."
    return Failure(
        cause=Cause.PROCESS,
        message=message,
        host=host,
        exit_code=ended.exit_code,
        traceback=traceback,
        log_tail=None if traceback else text[-4096:].strip() or None,
    )


def last_traceback(text: str) -> str | None:
    """Return the last of Python's tracebacks in what a program printed, with those that it is chained to.

    None if there is none. Its last line names the exception; what a message has in further lines is left out.
    """
    lines = _TORN.sub(r"\1: ", text).split("\n")
    # It may come behind a line whose end the toolkit has not read yet.
    starts = [number for number, line in enumerate(lines) if line.endswith(_HEADER)]
    if not starts:
        return None
    for start in starts:
        lines[start] = _HEADER
    first = last = starts[-1]
    end = _end(lines, last)
    if end is None:
        return None
    for start in reversed(starts[:-1]):
        before = _end(lines, start)
        between = [line for line in lines[before + 1 : first] if line] if before is not None else []
        if len(between) != 1 or between[0] not in _LINKS:
            break
        first = start
    return "\n".join(lines[first : end + 1])


def _end(lines: list[str], start: int) -> int | None:
    """Return the number of the line that names the exception of the traceback that begins at ``start``.

    A toolkit that reads standard output and standard error by itself, in pieces, may put a line of the one between two
    of the other, and take the indentation from the lines that a piece begins with (``sagemaker-training`` does:
    ``process.py``, ``watch``).
    """
    of_source = False  # whether the line before names a place in a file, so that this one is its source
    since = 0  # lines since the last place: its source, its marks, and one line of the other stream may follow it
    for number in range(start + 1, len(lines)):
        line, following = lines[number], next((line for line in lines[number + 1 :] if line), "")
        if not line:
            continue
        names_place = line.lstrip().startswith('File "')
        within = line.startswith(" ") or names_place or not line.strip("^~ ")
        named = not within and _EXCEPTION.fullmatch(line) is not None
        if named and not (of_source and _EXCEPTION.fullmatch(following)):
            return number
        torn = since < 4 and _SURE.fullmatch(following) is not None
        if not (within or of_source or torn or following.startswith((" ", "^", "~", 'File "'))):
            return None
        of_source, since = names_place, 0 if names_place else since + 1
    return None
