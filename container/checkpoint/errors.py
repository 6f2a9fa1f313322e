"""Define the errors of checkpoints.

::

    CheckpointError
    ├── CheckpointLockedError      another process writes into the folder
    ├── CheckpointWriteError       a save failed; raised by the next call, and by close()
    ├── NoUsableCheckpointError    there are checkpoints, and all of them are damaged
    ├── DamagedCheckpointError     the checkpoint that was requested by name is damaged
    ├── CheckpointVersionError     the checkpoint was written by a newer version
    └── CheckpointMismatchError    the checkpoint belongs to a different model or optimizer
    EpochBeginsAnew                not a failure: a data source's resume() may raise it
"""

from __future__ import annotations

from collections.abc import Sequence

from container.contract.frozen import dataclass


class CheckpointError(Exception):
    """Base class of the errors of checkpoints."""


class CheckpointLockedError(CheckpointError):
    """Raised if another process writes checkpoints into the same folder."""


class CheckpointWriteError(CheckpointError):
    """Raised if a checkpoint could not be written. Earlier checkpoints are unchanged."""


class CheckpointVersionError(CheckpointError):
    """Raised if a checkpoint has a format version that this version of fleetfit cannot read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """Raised if a checkpoint does not match the model or optimizer that it is restored into.

    Attributes:
        changed: The names of the objects that the restore may have changed, wholly or in part, before it found the
            mismatch.
    """

    def __init__(self, message: str, changed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changed = tuple(changed)


class EpochBeginsAnew(Exception):
    """Raised by a data source's ``resume()`` if the remaining records of the epoch cannot be determined.

    The epoch then starts over. The message names the reason.
    """


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A checkpoint that was not restored because it is damaged.

    Attributes:
        name: The name of the checkpoint's folder.
        file: The name of the damaged file in that folder. None if the folder itself is damaged.
        reason: Description of the damage.
    """

    name: str
    file: str | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.name}/{self.file}" if self.file else self.name
        return f"{where}: {self.reason}"


class DamagedCheckpointError(CheckpointError):
    """Raised if the requested checkpoint is damaged.

    Attributes:
        damage: The damaged file and the reason.
    """

    def __init__(self, damage: Skipped) -> None:
        super().__init__(str(damage))
        self.damage = damage

    def __reduce__(self) -> tuple[type[DamagedCheckpointError], tuple[Skipped]]:
        return type(self), (self.damage,)


class NoUsableCheckpointError(CheckpointError):
    """Raised if there are checkpoints, but all of them are damaged.

    Attributes:
        directory: The folder of the checkpoints.
        skipped: The damaged checkpoints, the newest first, each with the reason.
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
