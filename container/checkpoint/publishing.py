"""Write snapshots as checkpoints. This module's code runs in the thread of the Checkpointer's writer."""

from __future__ import annotations

import dataclasses
from typing import Any

from container.checkpoint import tensors
from container.checkpoint.errors import CheckpointWriteError
from container.checkpoint.interval import Schedule
from container.checkpoint.manifest import Manifest, Progress
from container.checkpoint.retention import Best
from container.checkpoint.store import CheckpointContents, CheckpointStore, is_full
from container.checkpoint.writer import Stopwatch, Target
from container.contract import events

#: Suffix of the files with arrays. A file's name consists of the name of a group of variables and this suffix.
SUFFIX = ".safetensors"


@dataclasses.dataclass(kw_only=True)
class Snapshot:
    """A copy of the variables that is waiting to be written to the disk."""

    arenas: dict[str, tensors.Arena]
    progress: Progress
    metrics: dict[str, float]
    metadata: Any
    facts: dict[str, Any]
    snapshot_s: float
    waited_s: float


class Publisher(Target[Snapshot]):
    """A target that writes the snapshots of a Checkpointer's :class:`BackgroundWriter` to the disk. The methods run in
    the writer's thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        keep: int | None,
        best: Best | None,
        schedule: Schedule,
        free: list[dict[str, tensors.Arena]],
    ) -> None:
        self._store = store
        self._keep = keep
        self._best = best
        self._schedule = schedule
        self._free = free
        self.completed: Progress | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Write one snapshot, and delete the checkpoints that need not be kept."""
        watch = Stopwatch()
        progress = snapshot.progress
        files = {group + SUFFIX: arena.buffers() for group, arena in snapshot.arenas.items()}
        contents = CheckpointContents(
            progress=progress,
            files=files,
            metrics=snapshot.metrics,
            metadata=snapshot.metadata,
            facts=snapshot.facts,
        )
        try:
            name, manifest = self._written(contents)
        except CheckpointWriteError as error:
            events.emit("checkpoint", action="failed", epoch=progress.epoch, step=progress.step, reason=str(error))
            raise
        finally:
            self._free.append(snapshot.arenas)
        self.completed = progress
        events.emit(
            "checkpoint",
            action="saved",
            name=name,
            epoch=progress.epoch,
            step=progress.step,
            batch=progress.batch,
            bytes=manifest.total_bytes,
            snapshot_s=round(snapshot.snapshot_s, 6),
            waited_s=round(snapshot.waited_s, 6),
            write_s=round(watch.wall_s, 6),
            metrics=snapshot.metrics,
        )
        self._store.prune(keep=self._keep, best=self._best)
        self._schedule.written(write_s=watch.wall_s, processor_s=watch.processor_s)

    def close(self) -> None:
        """Release the folder so that other processes can write into it."""
        self._store.close()

    def _written(self, contents: CheckpointContents) -> tuple[str, Manifest]:
        try:
            return self._store.write(contents)
        except CheckpointWriteError as error:
            # Delete checkpoints that need not be kept: there may be some, if ``keep`` is lower than in an earlier run.
            if not is_full(error) or not self._store.prune(keep=self._keep, best=self._best):
                raise
        return self._store.write(contents)
