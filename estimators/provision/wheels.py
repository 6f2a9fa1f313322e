"""A cache of wheels that were built here: published whole or not at all, and checked before use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from estimators.provision import locks
from estimators.provision.progress import SILENT, Progress

_MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class WheelCache:
    """One folder per key, each with one wheel and a manifest of its size and digest."""

    root: Path

    def find(self, key: str) -> Path | None:
        """Return the cached wheel, or None if there is none or what is there is damaged."""
        folder = self.root / "wheels" / key
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            wheel = folder / manifest["name"]
            intact = wheel.stat().st_size == manifest["size"] and _digest(wheel) == manifest["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return wheel if intact else None

    def publish(self, key: str, wheel: Path) -> Path:
        """Put a wheel into the cache in place of whatever has its key.

        Readers see the old folder, none, or the complete new one; a crash leaves at most a hidden folder that the
        next :meth:`publish` removes. Call it under :meth:`lock`.

        Raises:
            zipfile.BadZipFile: If the file is not an intact wheel.
        """
        with zipfile.ZipFile(wheel) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{wheel}: {damaged} is damaged")
        parent = self.root / "wheels"
        parent.mkdir(parents=True, exist_ok=True)
        self._sweep(key)
        staged = parent / f".{key}.{uuid.uuid4().hex}"
        staged.mkdir()
        copied = Path(shutil.copyfile(wheel, staged / wheel.name))
        manifest = {"name": wheel.name, "size": copied.stat().st_size, "sha256": _digest(copied)}
        (staged / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in (copied, staged / _MANIFEST, staged):
            _sync(path)
        self.discard(key)
        staged.rename(parent / key)
        _sync(parent)
        return parent / key / wheel.name

    def discard(self, key: str) -> None:
        """Take a key out of the cache, in one step for readers."""
        folder = self.root / "wheels" / key
        aside = folder.with_name(f".{key}.{uuid.uuid4().hex}")
        try:
            folder.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside)

    @contextmanager
    def lock(self, key: str, progress: Progress = SILENT) -> Iterator[int]:
        """Keeps other builders of the same key out while the block runs; yields the lock's descriptor."""
        with locks.exclusive(
            self.root / "locks" / f"{key}.lock", progress, "Waiting for another build of the same wheel ..."
        ) as descriptor:
            yield descriptor

    def _sweep(self, key: str) -> None:
        for left_over in (self.root / "wheels").glob(f".{key}.*"):
            shutil.rmtree(left_over)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
