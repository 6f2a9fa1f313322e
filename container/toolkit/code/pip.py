"""Run pip as a child process that ends with this process, and explain pip's errors."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

_KEPT_LINES = 400
_SHOWN_LINES = 20

# Started with -c, because `-m pip` would import modules from the working directory instead of the standard library. The
# exit status is sent through a pipe, because other code in this process may reap the child before this module does.
_RUN = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import ctypes, os, runpy, signal
parent, status = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
sys.argv[:] = ["pip", *sys.argv[3:]]
code = 1
try:
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
    code = 0
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
except ImportError as error:
    print(f"ERROR: {error}", flush=True)
finally:
    os.write(status, str(code).encode())
sys.exit(code)
"""

#: Settings with which pip would install into a different folder, or not install at all.
_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_DRY_RUN", "PIP_REPORT")

# The first pattern that matches determines the error.
_REMEDIES = (
    (
        r"No module named '?pip'?(\W|$)",
        "this Python has no pip: run '{python} -m ensurepip --upgrade' (or 'uv pip install --python {python} pip').",
    ),
    (
        r"no such option: --(dry-run|report)",
        "its pip is older than 22.2: run '{python} -m pip install --upgrade pip'.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies|conflict is caused by",
        "its requirements contradict each other. Loosen or drop one of the requirements named below.",
    ),
    (
        r"(?i)name resolution|NewConnectionError|Failed to establish a new connection|ConnectTimeout|ReadTimeout"
        r"|Network is unreachable|Connection refused|ProxyError|SSLError|Name or service not known|Max retries exceeded"
        r"|NameResolutionError",
        "the package index cannot be reached. Install the missing packages into this Python beforehand, or add "
        "'--no-index' and '--find-links FOLDER' lines with a folder of wheels.",
    ),
    (r"DO NOT MATCH THE HASHES", "a package does not have the given hash. Update the hash if the package is right."),
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full. Set FLEETFIT_CACHE to a folder on a larger disk.",
    ),
    (
        r"requires a different Python|Requires-Python",
        "a package does not support this Python ({python}). Choose another version of the package.",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "a package or version does not exist for this Python ({python}) or in pip's index. Pip's lines below name "
        "the package.",
    ),
    (
        r"subprocess-exited-with-error|metadata-generation-failed|Failed (to build|building)|error: command ",
        "a package could not be built here. Choose a version that has a wheel for this Python ({python}), or install "
        "the tools that the build needs.",
    ),
    (r"Invalid requirement|Invalid URL|is not a valid editable", "a line is not a requirement. Correct that line."),
)


class PipError(RuntimeError):
    """Error that is raised if pip has failed.

    Attributes:
        remedy: The cause and the remedy of a known error. None if the error is unknown.
        said: The error that pip has printed, line by line (:func:`error_lines`).
    """

    def __init__(self, remedy: str | None, said: Sequence[str]) -> None:
        super().__init__(remedy or "pip failed.")
        self.remedy = remedy
        self.said = tuple(said)


def lines_of(
    arguments: Sequence[str],
    *,
    python: str,
    cwd: Path,
    timeout: float,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[str]:
    """Run pip to its end, and yield each line that pip prints.

    Any thread may call this function, if the thread lives until pip ends. pip is killed when this process or thread
    ends.

    Args:
        arguments: The arguments of pip, beginning with the subcommand.
        python: The path of the interpreter whose pip is run.
        cwd: The working directory, to which relative paths refer. pip imports no module from this directory.
        timeout: The time limit in seconds.
        environ: The environment variables for pip. fleetfit's own variables are not passed to pip.

    Raises:
        PipError: pip has failed, is not installed, or has exceeded the time limit.
        OSError: ``python`` could not be started.
    """
    until = time.monotonic() + timeout
    status_read, status_write = os.pipe()
    try:
        command = [python, "-c", _RUN, str(os.getpid()), str(status_write), *arguments]
        with subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(status_write,),
            start_new_session=True,
        ) as process:
            os.close(status_write)
            status_write = -1
            assert process.stdout is not None
            lines, in_time = yield from _follow(process.stdout.fileno(), until)
            if not in_time:
                _kill(process.pid)
        status = os.read(status_read, 16)
    finally:
        os.close(status_read)
        if status_write >= 0:
            os.close(status_write)
    if not in_time:
        raise PipError(f"pip did not end within {timeout:.0f} seconds and was killed.", lines[-_SHOWN_LINES:])
    if status != b"0":
        raise PipError(remedy("\n".join(lines), python), error_lines(lines))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for pip: the given ones, with settings for plain output. Variables that change
    where pip installs, and fleetfit's own variables, are removed.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(("FLEETFIT_", *_ELSEWHERE))}
    return {
        **kept,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        "PIP_NO_INPUT": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_USER": "0",
        "PYTHONUNBUFFERED": "1",
    }


def remedy(output: str, python: str) -> str | None:
    """Return the cause and the remedy of a known error. Return None if the error is unknown.

    Args:
        output: The output of pip.
        python: The path of the interpreter, for the remedy.
    """
    for pattern, text in _REMEDIES:
        if re.search(pattern, output):
            return text.format(python=python)
    return None


def error_lines(lines: Sequence[str]) -> list[str]:
    """Return the error that pip has printed, beginning with the first ERROR line. The middle of a long error is
    omitted.

    If there is no ERROR line, return the last lines.
    """
    said = [line.rstrip() for line in lines if line.strip() and "[notice]" not in line]
    start = next((i for i, line in enumerate(said) if line.lstrip().lower().startswith("error")), None)
    block = said[start:] if start is not None else said[-_SHOWN_LINES:]
    if len(block) > _SHOWN_LINES:
        half = _SHOWN_LINES // 2
        block = [*block[:half], f"… {len(block) - 2 * half} lines left out …", *block[-half:]]
    return block


def _follow(fd: int, until: float) -> Generator[str, None, tuple[list[str], bool]]:
    """Yield the lines of pip's output until the end of the output or the deadline.

    Args:
        fd: The descriptor of a pipe with pip's output.
        until: The deadline, as a value of ``time.monotonic()``.

    Returns:
        The last lines (at most ``_KEPT_LINES``), and whether the output ended before the deadline.
    """
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    lines: list[str] = []
    rest = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return lines, False
        data = os.read(fd, 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole.append(rest)
        for line in whole:
            text = line.decode("utf-8", "replace").rstrip("\r")
            lines.append(text)
            yield text
        del lines[:-_KEPT_LINES]
        if not data:
            return lines, True


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
