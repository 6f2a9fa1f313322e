"""What can go wrong while the environment is made.

::

    ProvisionError                cause and remedy, each one line
    ├── PythonUnsupported         TensorFlow has no wheel for this Python
    ├── VenvUnavailable           Python came without venv, or the folder is something else
    ├── OutOfSpace                the disk is full, or will be
    ├── IndexUnreachable          no network, or a wrong proxy or certificate setting
    ├── RequirementUnavailable    the index was reached, and does not have what is asked for
    ├── CommandFailed             a command of ours failed otherwise; its log is kept
    ├── PipeReaderUnavailable     the fast reader of Pipe mode cannot be built; the other one does
    └── HorovodUnavailable        this machine cannot build Horovod
        ├── CompilerMissing       there is no C++ compiler
        └── HorovodBuildFailed    the compiler ran and failed; its log is kept
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


class ProvisionError(Exception):
    """Something the user can act on: what happened, and what to do about it."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}. {remedy}")
        self.cause = cause
        self.remedy = remedy


class PythonUnsupported(ProvisionError):
    """The running Python is older or newer than the ones TensorFlow has wheels for."""


class VenvUnavailable(ProvisionError):
    """The virtual environment cannot be made where it is wanted."""


class OutOfSpace(ProvisionError):
    """A disk has less room than the environment needs."""


class IndexUnreachable(ProvisionError):
    """The package index does not answer."""


class RequirementUnavailable(ProvisionError):
    """The package index has no version that fits."""


class CommandFailed(ProvisionError):
    """A command ended with an error that none of the other classes describes."""

    def __init__(self, cause: str, remedy: str, *, log: Path | None = None, tail: Sequence[str] = ()) -> None:
        super().__init__(cause, remedy)
        self.log = log
        self.tail = tuple(tail)


class PipeReaderUnavailable(ProvisionError):
    """The compiled reader of Pipe mode is not available on this machine; channels are read without it."""


class HorovodUnavailable(ProvisionError):
    """Horovod is not available on this machine; everything else of fleetfit works without it."""


class CompilerMissing(HorovodUnavailable):
    """No C++ compiler, and no wheel in the cache that would make one unnecessary."""


class HorovodBuildFailed(HorovodUnavailable, CommandFailed):
    """The build of Horovod ran and failed."""

    def __init__(self, cause: str, remedy: str, *, log: Path, tail: Sequence[str] = ()) -> None:
        CommandFailed.__init__(self, cause, remedy, log=log, tail=tail)


_NO_SPACE = ("No space left on device", "Errno 28", "os error 28", "Disk quota exceeded")
_NO_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate")
# The words of pip, then those of uv.
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
    # Where a constraint names it as well, a user's own say.
    r"|have no matching distributions available for your environment:\s+(?P<constrained>\S+)"
    r"|Because there (?:is no version|are no versions) of (?P<uv>\S+)"
    r"|Because (?P<wheel>\S+) has no wheels with a matching"
)
_NO_PACKAGE = re.compile(r"Because (?P<name>\S+) was not found in the (?:package registry|provided package locations)")


def diagnosis(lines: Sequence[str], *, log: Path, what: str) -> ProvisionError:
    """Return the error that describes why uv, pip, or a build that they ran, ended badly."""
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
        # What pip says without PIP_RETRIES, too: it then does not mention the connection.
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
