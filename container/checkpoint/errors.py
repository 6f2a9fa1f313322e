"""Errors of checkpoints.

::

    CheckpointError
    ├── CheckpointLockedError      another process writes into the folder
    ├── CheckpointWriteError       a save failed; raised by the next call, and by close()
    ├── NoUsableCheckpointError    there are checkpoints, and all of them are damaged
    ├── DamagedCheckpointError     one checkpoint, asked for by name, is damaged
    ├── CheckpointVersionError     written by a newer version
    └── CheckpointMismatchError    sound, but of another model or optimizer
    EpochBeginsAnew                no failure: what a data source's resume() may answer
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


class CheckpointError(Exception):
    """Base class of the errors of checkpoints."""


class CheckpointLockedError(CheckpointError):
    """Another process writes checkpoints into the same folder."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written. Those written before are untouched."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint is of a newer format than this version reads."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint does not fit the model or optimizer that it is restored into."""


class EpochBeginsAnew(Exception):
    """Raised by a data source's ``resume()``: it cannot tell which records of the epoch are left, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
    """A checkpoint that was not restored because it is damaged.

    Attributes:
        name: The checkpoint's folder.
        file: The damaged file in it; None when it is the folder itself.
        reason: What is wrong.
    """

    name: str
    file: str | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.name}/{self.file}" if self.file else self.name
        return f"{where}: {self.reason}"


class DamagedCheckpointError(CheckpointError):
    """A checkpoint does not verify.

    Attributes:
        damage: Which file, and what is wrong with it.
    """

    def __init__(self, damage: Skipped) -> None:
        super().__init__(str(damage))
        self.damage = damage

    def __reduce__(self) -> tuple[type[DamagedCheckpointError], tuple[Skipped]]:
        return type(self), (self.damage,)


class NoUsableCheckpointError(CheckpointError):
    """There are checkpoints, but none verifies.

    Attributes:
        skipped: Each of them, the newest first, with what is wrong.
    """

    def __init__(self, directory: str, skipped: Sequence[Skipped]) -> None:
        lines = "".join(f"\n  {damage}" for damage in skipped)
        super().__init__(
            f"none of the checkpoints in {directory} can be restored:{lines}\n"
            "Put an undamaged copy there, or move the folder away to start from the beginning."
        )
        self.directory = directory
        self.skipped = tuple(skipped)

    def __reduce__(self) -> tuple[type[NoUsableCheckpointError], tuple[str, tuple[Skipped, ...]]]:
        return type(self), (self.directory, self.skipped)
