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
    """The compiled reader of Pipe mode cannot be had on this machine; channels are read without it."""


class HorovodUnavailable(ProvisionError):
    """Horovod cannot be had on this machine; everything else of fleetfit works without it."""


class CompilerMissing(HorovodUnavailable):
    """No C++ compiler, and no wheel in the cache that would make one unnecessary."""


class HorovodBuildFailed(HorovodUnavailable, CommandFailed):
    """The build of Horovod ran and failed."""

    def __init__(self, cause: str, remedy: str, *, log: Path, tail: Sequence[str] = ()) -> None:
        CommandFailed.__init__(self, cause, remedy, log=log, tail=tail)
