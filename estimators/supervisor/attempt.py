"""Define the state of the current attempt: its membership, ranks and checkpoints. The module makes no decisions."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.job.request import TrainingJobSpec
from estimators.records.ranks import numbering

if TYPE_CHECKING:  # jobs that are not elastic need not wait for this import
    from estimators.supervisor.elastic.controller import ElasticController


class Attempt:
    """The state of one attempt. A new object is created for each attempt.

    Args:
        spec: The job's spec with the hosts of this attempt.
        checkpoints: The folder of the job's checkpoints.

    Attributes:
        elastic: The membership controller of an elastic job, whose hosts may join and leave. None for other jobs.
        ranks: The host of each rank that has started.
    """

    def __init__(self, spec: TrainingJobSpec, checkpoints: Path) -> None:
        self.spec = spec
        self.elastic: ElasticController | None = None
        self.ranks: dict[int, str] = {}
        self._numbering = numbering(spec)
        self._checkpoints = checkpoints
        self._mark = _newest(checkpoints)

    def rank_of(self, host: str, process: str | None) -> int | None:
        """Return the current rank of a host's process. Return None for a process without a rank."""
        if self.elastic is not None:
            return self.elastic.roster.rank_of(host, process)
        return self._numbering(host, process)

    @property
    def has_saved(self) -> bool:
        """Return whether any process has changed the folder of checkpoints since the attempt began."""
        return _newest(self._checkpoints) != self._mark

    def close(self) -> None:
        """Close the membership of an elastic job, so that no more hosts can join."""
        if self.elastic is not None:
            self.elastic.close()


def _newest(folder: Path) -> int:
    """Return the newest modification time of a folder's entries, in nanoseconds. Return 0 if the folder is empty."""
    newest = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest
