"""What a job in kept containers has downloaded.

Those containers see all records, and may write there. Downloaded files are links to the cache, which nothing in a
container may change: so they lie in a folder of their own, which the containers see read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from estimators.backends import local
from estimators.backends.docker import warm
from estimators.jobs.record import JobRecord
from estimators.spec import TrainingJobSpec


class PoolInputs:
    """The downloaded channels of one job.

    Args:
        record: The job's record.
        spec: The job.

    Attributes:
        folder: Where they are while they are apart.
    """

    def __init__(self, record: JobRecord, spec: TrainingJobSpec) -> None:
        self.folder = warm.inputs_folder(record.home) / spec.name
        self._record = record
        self._spec = spec

    def set_apart(self) -> None:
        """Move them out of the record, and leave links.

        Raises:
            OSError: they cannot be moved.
        """
        for place, apart in self._places():
            if place.is_dir() and not place.is_symlink():
                apart.parent.mkdir(parents=True, exist_ok=True)
                place.rename(apart)
                place.symlink_to(apart)

    def put_back(self) -> None:
        """For another attempt, or the end.

        Raises:
            OSError: they cannot be moved.
        """
        for place, apart in self._places():
            if place.is_symlink() and apart.is_dir():
                place.unlink()
                apart.rename(place)

    def _places(self) -> Iterator[tuple[Path, Path]]:
        for host in self._spec.hosts:
            for channel in local.downloaded(self._spec):
                yield self._record.tree(host).channel(channel), self.folder / host / channel
