"""Define the errors of provisioning, and find the cause of a failed command in its output.

::

    ProvisionError                an error with a cause and a remedy
    ├── PythonUnsupported         TensorFlow has no wheel for this Python
    ├── VenvUnavailable           Python has no venv module, or the folder is not an environment
    ├── OutOfSpace                the disk is full, or has too little space for the environment
    ├── IndexUnreachable          no network, or a wrong proxy or certificate setting
    ├── RequirementUnavailable    the package index does not have the required package
    ├── CommandFailed             a command failed for another reason
    ├── PipeReaderUnavailable     the fast Pipe mode reader cannot be built
    └── HorovodUnavailable        this machine cannot build Horovod
        ├── CompilerMissing       a C++ compiler is missing
        └── HorovodBuildFailed    the compiler ran and failed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


class ProvisionError(Exception):
    """An error that the user can solve. Its message has the cause and the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}. {remedy}")
        self.cause = cause
        self.remedy = remedy


class PythonUnsupported(ProvisionError):
    """Raised if the running Python is too old or too new for the wheels of TensorFlow."""


class VenvUnavailable(ProvisionError):
    """Raised if a virtual environment cannot be created, or if a folder is not a virtual environment."""


class OutOfSpace(ProvisionError):
    """Raised if the disk has less space than the environment needs."""


class IndexUnreachable(ProvisionError):
    """Raised if the package index cannot be reached."""


class RequirementUnavailable(ProvisionError):
    """Raised if the package index has no suitable version of a required package."""


class CommandFailed(ProvisionError):
    """Raised if a command failed for a reason that no other class describes."""

    def __init__(self, cause: str, remedy: str, *, log: Path | None = None, tail: Sequence[str] = ()) -> None:
        super().__init__(cause, remedy)
        self.log = log
        self.tail = tuple(tail)


class PipeReaderUnavailable(ProvisionError):
    """Raised if the Pipe mode reader cannot be compiled on this machine. Channels are then read more slowly."""


class HorovodUnavailable(ProvisionError):
    """Raised if Horovod cannot be installed on this machine. All other parts of fleetfit work without Horovod."""


class CompilerMissing(HorovodUnavailable):
    """Raised if Horovod must be built, but no C++ compiler is installed. A cached wheel needs no compiler."""


class HorovodBuildFailed(HorovodUnavailable, CommandFailed):
    """Raised if the build of Horovod failed."""

    def __init__(self, cause: str, remedy: str, *, log: Path, tail: Sequence[str] = ()) -> None:
        CommandFailed.__init__(self, cause, remedy, log=log, tail=tail)


_NO_SPACE = ("No space left on device", "Errno 28", "os error 28", "Disk quota exceeded")
_NO_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate")
# Messages of pip, then those of uv.
_NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "NewConnectionError",
    "NameResolutionError",
    "Network is unreachable",
    "Connection refused",
    "Connection reset",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "RemoteDisconnected",
    "ProxyError",
    "error sending request for url",
    "operation timed out",
)
_NO_VERSION = re.compile(
    r"No matching distribution found for (?P<pip>.+)"
    # uv prints this if a constraint names the package, too, such as one in the user's own settings.
    r"|have no matching distributions available for your environment:\s+(?P<constrained>\S+)"
    r"|Because there (?:is no version|are no versions) of (?P<uv>\S+)"
    r"|Because (?P<wheel>\S+) has no wheels with a matching"
)
_NO_PACKAGE = re.compile(r"Because (?P<name>\S+) was not found in the (?:package registry|provided package locations)")


def diagnosis(lines: Sequence[str], *, log: Path, what: str) -> ProvisionError:
    """Return the error that describes why uv, pip, or a build failed.

    Args:
        lines: The lines of the command's output.
        log: The path of the log file.
        what: The description of the command, for the message.
    """
    text = "\n".join(lines)
    again = "run the same command again: finished steps are kept"
    settings = "pip's proxy and index settings, which uv also uses (`pip config list` shows them)"
    if any(mark in text for mark in _NO_SPACE):
        return OutOfSpace(
            f"{what} failed: no space left on the disk",
            f"Free some space (`pip cache purge` may help), then {again}.",
        )
    if any(mark in text for mark in _NO_CERTIFICATE):
        return IndexUnreachable(
            f"{what} failed: the package index's TLS certificate is not trusted here",
            f"Point PIP_CERT at your organisation's CA bundle, then {again}.",
        )
    if any(mark in text for mark in _NO_NETWORK):
        return IndexUnreachable(
            f"{what} failed: the package index cannot be reached", f"Check the network and {settings}. Then {again}."
        )
    version = _NO_VERSION.search(text)
    wanted = next(filter(None, version.groups()), "").strip() if version else ""
    package = _NO_PACKAGE.search(text)
    if package or (version and "(from versions: none)" in text):
        # If PIP_RETRIES is 0, pip prints the same message after a failed connection, without mentioning the connection.
        return IndexUnreachable(
            f"{what} failed: the package index cannot be reached, or has no {package['name'] if package else wanted} "
            "at all",
            f"Check the network and {settings}. Then {again}.",
        )
    if version:
        return RequirementUnavailable(
            f"{what} failed: the package index has no {wanted} for this Python and platform",
            f"Use a Python for which the index has {wanted}, or check {settings}. Then {again}.",
        )
    tail = [line for line in lines if line.strip()][-15:]
    return CommandFailed(f"{what} failed", f"The whole output is in {log}.", log=log, tail=tail)
