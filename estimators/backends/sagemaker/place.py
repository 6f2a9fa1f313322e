"""How far the following of a job had come, kept in its record, so that another supervisor goes on without loss."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from estimators.records.record import JobRecord

_FILE = "following.json"


class Place:
    """A cursor of the logs together with the sizes that the record's growing files had then.

    A supervisor that is killed between writing lines and saving the cursor has written more than the cursor says: the
    next one cuts the files back to it, and reads those lines again.

    Args:
        record: The job's record.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._path = record.path / _FILE

    def save(self, cursor: dict[str, Any]) -> None:
        """Keep a cursor; everything that it stands for must have been written.

        Raises:
            RecordError: it cannot be written.
        """
        sizes = {str(path.relative_to(self._record.path)): path.stat().st_size for path in self._files()}
        self._record.write_json(self._path, {"cursor": cursor, "sizes": sizes})

    def restore(self) -> dict[str, Any]:
        """The last cursor, the files being as they were then; empty before the first.

        Raises:
            RecordError: it cannot be read.
        """
        kept = self._record.read_json(self._path) or {}
        sizes = kept.get("sizes") or {}
        for path in self._files():
            size = int(sizes.get(str(path.relative_to(self._record.path)), 0))
            if path == self._record.events_file and not kept:
                continue  # it begins before the logs do
            if path.stat().st_size > size:
                os.truncate(path, size)
        return dict(kept.get("cursor") or {})

    def _files(self) -> list[Path]:
        logs = [path for path in self._record.hosts_dir.glob("*/logs/*/*") if path.suffix in (".log", ".times")]
        events = [self._record.events_file] if self._record.events_file.exists() else []
        return [*sorted(logs), *events]
