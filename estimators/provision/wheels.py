"""Cache wheels that were built on this machine. A wheel in the cache is complete, and is checked before use."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from estimators.provision import locks
from estimators.provision.progress import SILENT, ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class WheelCache:
    """A cache of wheels. For each key, the cache has a folder with one wheel.

    Attributes:
        root: The folder of the cache.
    """

    root: Path

    def find(self, key: str) -> Path | None:
        """Return the path of the cached wheel. Return None if the cache has no wheel or a damaged wheel."""
        for wheel in (self.root / "wheels" / key).glob("*.whl"):
            try:
                with zipfile.ZipFile(wheel) as archive:
                    if archive.testzip() is None:
                        return wheel
            except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
                continue
        return None

    def publish(self, key: str, wheel: Path) -> Path:
        """Put a copy of a wheel into the cache. The copy replaces the previous wheel of the same key.

        Other processes find either the old or the complete new wheel. The caller must hold :meth:`lock`.

        Returns:
            The path of the wheel in the cache.

        Raises:
            zipfile.BadZipFile: the file is not an intact wheel.
        """
        with zipfile.ZipFile(wheel) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{wheel}: {damaged} is damaged")
        folder = self.root / "wheels" / key
        folder.mkdir(parents=True, exist_ok=True)
        staged = folder / ".staged"
        shutil.copyfile(wheel, staged)
        os.replace(staged, folder / wheel.name)
        for other in folder.iterdir():
            if other.name != wheel.name:
                other.unlink()
        return folder / wheel.name

    def discard(self, key: str) -> None:
        """Remove the wheel of a key from the cache."""
        shutil.rmtree(self.root / "wheels" / key, ignore_errors=True)

    @contextmanager
    def lock(self, key: str, progress: ProgressDisplay = SILENT) -> Iterator[int]:
        """Hold the lock of a key while the block runs, and yield the lock's descriptor.

        While this process holds the lock, no other process builds a wheel for the same key.
        """
        with locks.exclusive(
            self.root / "locks" / f"{key}.lock", progress, "Waiting for another build of the same wheel ..."
        ) as descriptor:
            yield descriptor
