"""Store the position up to which a job was followed, so that another supervisor can continue at this position.

The position is stored in the job's record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from estimators.records.record import JobRecord

_FILE = "following.json"


class Place:
    """A stored position in the logs (the cursor), with the sizes that the record's growing files had at that position.

    A supervisor may be killed after it has written lines and before it has saved the cursor. The next supervisor then
    truncates the files to the saved sizes and reads the lines after the saved cursor again.

    Args:
        record: The job's record.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._path = record.path / _FILE

    def save(self, cursor: dict[str, Any]) -> None:
        """Store a cursor. All lines before the cursor must have been written to the record.

        Raises:
            RecordError: the file cannot be written.
        """
        sizes = {str(path.relative_to(self._record.path)): path.stat().st_size for path in self._files()}
        self._record.write_json(self._path, {"cursor": cursor, "sizes": sizes})

    def restore(self) -> dict[str, Any]:
        """Truncate the files to the sizes stored with the last cursor, and return the cursor.

        Return an empty dict if no cursor is stored.

        Raises:
            RecordError: the file cannot be read.
        """
        kept = self._record.read_json(self._path) or {}
        sizes = kept.get("sizes") or {}
        for path in self._files():
            size = int(sizes.get(str(path.relative_to(self._record.path)), 0))
            if path == self._record.events_file and not kept:
                continue  # the events begin before the first cursor is saved
            if path.stat().st_size > size:
                os.truncate(path, size)
        return dict(kept.get("cursor") or {})

    def _files(self) -> list[Path]:
        logs = [path for path in self._record.hosts_dir.glob("*/logs/*/*") if path.suffix in (".log", ".times")]
        events = [self._record.events_file] if self._record.events_file.exists() else []
        return [*sorted(logs), *events]
