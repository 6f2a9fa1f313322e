"""Describe where each rank waits in a job that makes no progress.

Progress is anything that a rank prints or reports, except Horovod's warnings about missing ranks. The toolkit requests
the stacks of a rank with a signal. The hook in every rank's interpreter (``container/hook``) has registered Python's
``faulthandler``, which then prints the stacks, even while the rank waits in native code.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import re
import signal
from pathlib import Path

from container.system import processes
from container.system.progress import DUMP_TIME

#: The signal that requests the stacks. By default, a process ignores SIGURG. Therefore the signal does no harm,
#: even if Python has shut down or has called ``exec`` after the check for a handler. Scripts rarely use this signal.
#: Programs that use it (Go's runtime) tolerate additional signals.
STACK_SIGNAL = int(signal.SIGURG)

#: Description of a suspended process.
STOPPED = "it is stopped (SIGSTOP); SIGCONT resumes it"

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_HEADER = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\):")

#: Words in function names or source lines that indicate a collective operation.
_COLLECTIVES = re.compile(
    r"\b\w*(all_?reduce|all_?gather|reduce_?scatter|broadcast|bcast|barrier|all_?to_?all|synchronize|join|recv|send|"
    r"wait)\w*\b",
    re.IGNORECASE,
)

_PACKAGE = Path(__file__).resolve().parents[1]
_IMPORTLIB = "<frozen importlib"
_IMPORTERS = ("/toolkit/importer/__main__.py", "/toolkit/importer/loading.py")
#: Keras's methods that run training steps, and the files of TensorFlow's compiled functions.
_STEPS = ("fit", "train_on_batch", "evaluate", "test_on_batch", "predict", "predict_on_batch")
_COMPILED = ("/polymorphic_function/", "/eager/def_function.py", "/python/client/session.py")

# Horovod's stall_inspector.cc: a log line, then a line for each missing rank with up to six of the tensors.
_WARNING = re.compile(rb"\bstall_inspector\.cc:\d+\] ")
_MISSING = re.compile(rb"(?P<rank>\d+)!?: \[(?P<tensors>.*)\]")
_MORE = re.compile(rb"Missing ranks:|One or more rank \(marked by|" + _MISSING.pattern)
#: The beginning of one of Horovod's log lines, with the time and the severity. Horovod writes a log line in several
#: pieces.
_BEGINNING = re.compile(rb"\[[\d .:-]*(?:[TDIWEF](?: [^\]]*\]?)?)?")


class StallWarnings:
    """Distinguish a rank's progress from Horovod's warnings that ranks are missing in a collective operation."""

    def __init__(self) -> None:
        self._inside = self._begins = False
        #: Missing rank -> tensors that the other ranks wait for, from the last warning.
        self.missing: dict[int, str] = {}

    def is_progress(self, pieces: list[bytes], rest: bytes = b"") -> bool:
        """Return whether a rank's output contains any text other than Horovod's warnings about missing ranks.

        Args:
            pieces: The lines of the output, with their terminators.
            rest: The beginning of the next line.
        """
        found = False
        for piece in pieces:
            if _WARNING.search(piece):
                self._inside = self._begins = True
            elif self._inside and _MORE.match(piece):
                if match := _MISSING.match(piece):
                    if self._begins:  # until the new warning names missing ranks, the previous warning is valid
                        self._begins, self.missing = False, {}
                    self.missing[int(match["rank"])] = match["tensors"].decode("utf-8", "replace")
            else:
                self._inside = False
                self.missing = {}
                found = True
        if not rest or _WARNING.search(rest) or _BEGINNING.fullmatch(rest):
            return found
        return found or not (self._inside and _MORE.match(rest))


def main_stack(text: str) -> list[tuple[str, int, str]]:
    """Return the frames of the main thread in the last stack dump of a rank, as ``(file, line, function)``. The
    innermost frame is the first.

    The main thread is recognised as the last thread, because faulthandler prints it last.
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
    """Return a phrase that describes where the main thread is.

    The phrase names the innermost line of the user's code, and the operation in which the thread waits.

    Args:
        text: The end of the rank's output.
        code_dir: The folder of the user's code.

    Returns:
        A phrase such as ``train.py:12 in step: hvd.allreduce(x)``. None if the output contains no dump.
    """
    frames = list(itertools.takewhile(lambda frame: not frame[0].endswith(_IMPORTERS), main_stack(text)))
    if not frames:
        return None
    own = next((i for i, (path, _, _) in enumerate(frames) if Path(path).is_relative_to(code_dir)), None)
    inner = frames[:own]
    importing = any(path.startswith(_IMPORTLIB) for path, _, _ in inner)
    if own is None and importing:  # faulthandler shows a hundred frames, which do not reach the user's line
        return f"importing {_module(frames)}"
    path, number, function = frames[own or 0]
    shown = str(Path(path).relative_to(code_dir)) if own is not None else path
    phrase = f"{shown}:{number} in {function}"
    source = linecache.getline(path, number).strip()
    if source:
        phrase += f": {source[:120]}"
    if importing:
        return f"{phrase} (importing {_module(inner)})"
    foreign = [(file, name) for file, _, name in inner if not Path(file).is_relative_to(_PACKAGE)]
    named = (name for _, name in foreign if _COLLECTIVES.search(name) and name != function and name not in source)
    if operation := next(named, None):
        return f"{phrase} (waiting in {operation})"
    step = next((name for file, name in foreign if name in _STEPS and "keras" in file), None)
    if step:
        return f"{phrase} (waiting inside a training step: model.{step})"
    if any(part in file for file, _ in foreign for part in _COMPILED):
        return f"{phrase} (waiting inside a compiled step, a graph)"
    return phrase


def _module(frames: list[tuple[str, int, str]]) -> str:
    """Return the name of the package that is being imported. The outermost frame of an installed package determines the
    name.
    """
    for path, _, _ in reversed(frames):
        _, found, inside = path.rpartition("site-packages/")
        if found:
            return inside.partition("/")[0].removesuffix(".py")
    return "modules"


def ask(pid: int) -> bool:
    """Request the stacks of a rank by a signal. If the rank's process has no handler for the signal (a shell, for
    example), send the signal to its child processes that have one.

    Returns:
        Whether any process has a handler for the signal. Processes without a handler get no signal.
    """
    found: list[int] = []
    queue = [pid]
    children = None
    while queue:
        candidate = queue.pop(0)
        if processes.catches(candidate, STACK_SIGNAL):
            found.append(candidate)
        else:
            children = processes.children_by_parent() if children is None else children
            queue += children.get(candidate, ())
    for candidate in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(candidate, STACK_SIGNAL)
    return bool(found)


def where(pid: int, wrapper: int | None, text: str, code_dir: Path, *, asked: bool) -> str:
    """Return a phrase that describes where a rank is in its code. If the rank has printed no stack, the phrase
    describes why.

    Args:
        pid: The pid of the rank's process.
        wrapper: The pid of the process that has started the rank and reports its end. None if there is no such process.
        text: The end of the rank's output.
        code_dir: The folder of the user's code.
        asked: Whether the rank's stack has been requested.
    """
    if processes.is_stopped(pid):
        return STOPPED
    place = (waiting_in(text, code_dir) if asked else None) or without_stack(pid, asked=asked)
    if wrapper is not None and processes.is_stopped(wrapper):
        place += f"; the process that started it (pid {wrapper}) is stopped (SIGSTOP) and cannot report the rank's end"
    return place


def without_stack(pid: int, *, asked: bool) -> str:
    """Return a phrase that describes a process that has not printed its stack.

    Args:
        pid: The pid of the process.
        asked: Whether the stack could be requested.
    """
    name, state = processes.name(pid), processes.state(pid)
    if state in ("", "Z"):
        return "it has ended"
    if state == "t":
        return f"a debugger holds it ({name})"
    if state == "D":
        return f"it waits in the kernel, for a disk or a network file system, and cannot answer ({name}{_kernel(pid)})"
    if asked:
        return f"it did not answer within {DUMP_TIME:g} s ({name}{_kernel(pid)})"
    if _is_python(pid):
        return (
            "it has no stack to show. Either Python has already shut down in this process and waits for the other "
            "ranks (as in MPI_Finalize), or Python was started with -S or -I"
        )
    below = [
        f"{processes.name(found)}{', which is stopped (SIGSTOP)' if processes.is_stopped(found) else ''}"
        for found in processes.descendants(pid)[:3]
    ]
    runs = f", which runs {', '.join(below)}" if below else ""
    return f"it has no stack to show: the process is not Python but {name}{runs}"


def _kernel(pid: int) -> str:
    """Return a phrase that describes where in the kernel a process waits.

    Return an empty text if the kernel does not show this.
    """
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8").strip()
        if place not in ("", "0"):
            return f", in {place}"
    return ""


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    return False
