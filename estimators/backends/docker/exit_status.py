"""Find the cause of a failure when a container has ended."""

from __future__ import annotations

import re
import signal

from container.contract.failures import Cause, Failure
from container.contract.names import cut
from estimators.backends.docker.engine import ContainerEnd

_HEADER = "Traceback (most recent call last):"
#: The lines that Python prints between the tracebacks of a chain.
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: Patterns of a traceback's last line, such as ``package.Broken: no data``. ``_SURE`` matches only names that are
#: typical of exceptions, such as ``KeyError``.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(?:: .*)?")
_SURE = re.compile(r"[A-Za-z_][\w.<>]*(?:Error|Exception|Exit|Interrupt|Warning)(?:: .*)?")
#: An exception's name that a line break separates from the message, because a toolkit has read the two separately.
_TORN = re.compile(r"^([A-Za-z_][\w.]*)(?:\n+:|:\n)\s*(?=\S)", re.MULTILINE)
#: Maximum number of characters that the reason quotes from ``output/failure``.
_SAID = 600


def end_failure(host: str, ended: ContainerEnd, tail: bytes, *, toolkit: bool, said: str = "") -> Failure | None:
    """Return the failure of a container that has ended.

    Return None in three cases: the container has succeeded, it has ended after SIGTERM, or our toolkit reports the
    failure itself.

    Args:
        host: The name of the host.
        ended: The end of the container.
        tail: The last part of the container's output.
        toolkit: Whether our toolkit ran in the container.
        said: The content of ``/opt/ml/output/failure`` if an image without our toolkit has written the file.
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
    """Return the last Python traceback in a program's output, with the tracebacks that it is chained to.

    Return None if there is no traceback. The last line of the result names the exception. Additional lines of the
    exception's message are omitted.

    Some toolkits read standard output and standard error piece by piece, for example ``sagemaker-training`` (``watch``
    in ``process.py``). Such a toolkit may insert a line of standard output between two lines of standard error. It may
    also remove the indentation of the first line of a piece. The line with the exception is therefore recognised by a
    pattern, and not by its position or indentation.
    """
    # The header need not start a line: it may follow an unfinished line of other output.
    *before, last = _TORN.sub(r"\1: ", text).split(_HEADER)
    lines = last.split("\n")
    ends = [number for rule in (_SURE, _EXCEPTION) for number, line in enumerate(lines) if rule.fullmatch(line)]
    if not before or not ends:
        return None
    found = "\n".join(lines[: ends[0] + 1])
    while len(before) > 1 and before[-1].rstrip().endswith(_LINKS):
        found = f"{before.pop()}{_HEADER}{found}"
    return _HEADER + found
