"""What a container's end says about the cause of a failure."""

from __future__ import annotations

import re
import signal

from container.contract.failures import Cause, Failure
from container.contract.names import cut
from estimators.backends.docker.engine import ContainerEnd

_HEADER = "Traceback (most recent call last):"
#: Between the tracebacks of a chain, as Python prints it.
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: The last line of a traceback: ``package.Broken: no data``; and one whose exception's name says that it is one.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(?:: .*)?")
_SURE = re.compile(r"[A-Za-z_][\w.<>]*(?:Error|Exception|Exit|Interrupt|Warning)(?:: .*)?")
#: An exception's name whose message was read as another piece.
_TORN = re.compile(r"^([A-Za-z_][\w.]*)(?:\n+:|:\n)\s*(?=\S)", re.MULTILINE)
#: Characters of an image's own ``output/failure`` that become part of the reason.
_SAID = 600


def end_failure(host: str, ended: ContainerEnd, tail: bytes, *, toolkit: bool, said: str = "") -> Failure | None:
    """Return what the backend itself knows of the cause of a container's end, when nothing of ours ended it.

    Args:
        host: The host.
        ended: How it ended.
        tail: The end of what it printed.
        toolkit: Whether our toolkit ran in it, which says itself why it failed.
        said: What an image of others wrote into ``/opt/ml/output/failure``.
    """
    code, message, traceback = ended.exit_code, "", None
    hints: tuple[str, ...] = ()
    if code == 0:
        return None
    if ended.out_of_memory:
        message = "the container ran out of memory, and the kernel killed one of its processes."
        hints = (
            "Give the container more memory with RunOptions(backend_options={'memory': '8g'}), or reduce the "
            "script's memory use: smaller batches, fewer processes per host.",
        )
    elif code == 128 + signal.SIGKILL:
        message = "the container was killed from outside (SIGKILL)."
        return Failure(cause=Cause.PROCESS, message=message, host=host, signal=int(signal.SIGKILL))
    elif ended.error:
        message = f"the container ended: {ended.error.rstrip('.')}."
    elif toolkit or code == 128 + signal.SIGTERM:
        return None
    text = "" if message else tail.decode("utf-8", "replace")
    if not message:
        traceback = last_traceback(text)
        told = f": {cut(said.strip(), _SAID)}" if said.strip() else "."
        message = traceback.splitlines()[-1] if traceback else f"the container exited with code {code}{told}"
    return Failure(
        cause=Cause.PROCESS,
        message=message,
        host=host,
        exit_code=code,
        hints=hints,
        traceback=traceback,
        log_tail=None if traceback else text[-4096:].strip() or None,
    )


def last_traceback(text: str) -> str | None:
    """Return the last of Python's tracebacks in what a program printed, with those that it is chained to.

    None if there is none. Its last line names the exception; what a message has in further lines is left out. A toolkit
    that reads standard output and standard error by itself, in pieces, may put a line of the one between two of the
    other, and take the indentation from the lines that a piece begins with (``sagemaker-training`` does: ``watch`` in
    ``process.py``). So a line is taken for the exception by its form alone.
    """
    # The header may come behind a line whose end the toolkit has not read yet.
    *before, last = _TORN.sub(r"\1: ", text).split(_HEADER)
    lines = last.split("\n")
    ends = [number for rule in (_SURE, _EXCEPTION) for number, line in enumerate(lines) if rule.fullmatch(line)]
    if not before or not ends:
        return None
    found = "\n".join(lines[: ends[0] + 1])
    while len(before) > 1 and before[-1].rstrip().endswith(_LINKS):
        found = f"{before.pop()}{_HEADER}{found}"
    return _HEADER + found
