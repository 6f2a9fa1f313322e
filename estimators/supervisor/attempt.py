"""State of the current attempt that involves no decision: its membership, ranks and checkpoints."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.job.request import TrainingJobSpec
from estimators.records.ranks import numbering

if TYPE_CHECKING:  # the others need not wait for the imports of elastic jobs
    from estimators.supervisor.elastic.controller import ElasticController


class Attempt:
    """State of one attempt; each attempt has its own object.

    Args:
        spec: The job, on the hosts of this attempt.
        checkpoints: The folder of the job's checkpoints.

    Attributes:
        elastic: The membership of an elastic job.
        ranks: Where each rank runs.
    """

    def __init__(self, spec: TrainingJobSpec, checkpoints: Path) -> None:
        self.spec = spec
        self.elastic: ElasticController | None = None
        self.ranks: dict[int, str] = {}
        self._numbering = numbering(spec)
        self._checkpoints = checkpoints
        self._mark = _newest(checkpoints)

    def rank_of(self, host: str, process: str | None) -> int | None:
        """Return the rank of a host's process; None for a process without one."""
        if self.elastic is not None:
            return self.elastic.roster.rank_of(host, process)
        return self._numbering(host, process)

    @property
    def has_saved(self) -> bool:
        """Return whether the folder of checkpoints has changed since the attempt began, whoever wrote there."""
        return _newest(self._checkpoints) != self._mark

    def close(self) -> None:
        """Close the membership of an elastic job: no further host can join."""
        if self.elastic is not None:
            self.elastic.close()


def _newest(folder: Path) -> int:
    """Return the newest modification time of a folder's entries, in nanoseconds; 0 if the folder is empty."""
    newest = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest
