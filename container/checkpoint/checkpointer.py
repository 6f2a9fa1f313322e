"""The Checkpointer: saves while a model trains, restores on every rank."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from container.checkpoint import state, tensors
from container.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    NoUsableCheckpointError,
    Skipped,
)
from container.checkpoint.interval import BUDGET, Every, Schedule
from container.checkpoint.manifest import Progress
from container.checkpoint.publishing import SUFFIX, Publisher, Snapshot
from container.checkpoint.retention import Best
from container.checkpoint.sharing import Counting, Refusal, SavingCluster, SingleProcess, share, surrounding_cluster
from container.checkpoint.state_dicts import StateDicts, state_of
from container.checkpoint.store import CheckpointStore, Loaded, serial_of
from container.checkpoint.writer import BackgroundWriter
from container.contract import events, layout, variables
from container.contract.names import unknown

_LEARNING_RATES = ("auto", "saved", "current")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What was restored.

    Attributes:
        name: The checkpoint.
        progress: How far it was.
        metrics: Values at that point.
        metadata: The user's own.
        size: The number of ranks that it was saved with.
        rate_kept: Whether the optimizer's learning rate is the script's, and not the saved one.
        arrays: What was saved, by file and name, when ``restore`` was given nothing to fill.
        skipped: Newer checkpoints that are damaged, the newest first.
    """

    name: str
    progress: Progress
    metrics: Mapping[str, float]
    metadata: Any
    size: int
    rate_kept: bool = False
    arrays: Mapping[str, Mapping[str, np.ndarray[Any, Any]]] = dataclasses.field(default_factory=dict, repr=False)
    skipped: tuple[Skipped, ...] = ()

    @property
    def serial(self) -> int:
        """Its number: a checkpoint with a higher one was saved later."""
        return serial_of(self.name)

    @property
    def epoch(self) -> int:
        """Finished epochs: Keras' ``initial_epoch``."""
        return self.progress.epoch

    @property
    def step(self) -> int:
        """Finished steps over all epochs."""
        return self.progress.step


class Checkpointer:
    """Saves checkpoints and restores them.

    Args:
        directory: The folder; None for ``$SM_CHECKPOINT_DIR``, or ``/opt/ml/checkpoints`` without it.
        keep: How many of the newest stay; None for all.
        best: What else stays: ``"val_loss"``, ``"max f1"``, or a :class:`Best`.
        every: When :meth:`callback` saves: a number of steps, ``"30s"``, ``"5 min"``, ``"epoch"``, ``"2 epochs"``, or
            ``"auto"``: as often as costs no more than ``budget``.
        asynchronous: Whether a save only takes a snapshot, and a thread writes it.
        cluster: The cluster, as ``container.distributed.init()`` gives it; ``cluster.callbacks(checkpointer=…)`` sets
            it. None for that of ``init()``, if it has been called by the first use, and else for a single process.
            :class:`SingleProcess` for a script that saves and restores on one of its ranks alone.
        budget: The share of the training time that "auto" may cost.
        pending: How many snapshots may be in memory at once. A save that would be one more waits.
        learning_rate: Where the optimizer's learning rate comes from at a restore: ``"saved"``, ``"current"`` (the
            script's), or ``"auto"``: the saved one if the cluster has the size that it had then.
        read_only: Restores while another process may be writing, and never writes.
        lock_timeout: How long another writer, which may be ending, is waited for, in seconds.

    Attributes:
        every: The interval.
        progress: That of the last restore and, on rank 0, save; None before.
        schedule: Decides when :meth:`callback` saves.

    Raises:
        ValueError: an argument makes no sense; nothing is touched before the first use.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        keep: int | None = 3,
        best: str | Best | None = None,
        every: int | str | datetime.timedelta | Every = "auto",
        asynchronous: bool = True,
        *,
        cluster: SavingCluster | None = None,
        budget: float = BUDGET,
        pending: int = 1,
        learning_rate: str = "auto",
        read_only: bool = False,
        lock_timeout: float = 10.0,
    ) -> None:
        if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
            raise ValueError(f"keep must be at least 1, or None for all, got {keep!r}.")
        if learning_rate not in _LEARNING_RATES:
            raise ValueError(unknown("learning_rate", learning_rate, _LEARNING_RATES))
        for name, switch in (("asynchronous", asynchronous), ("read_only", read_only)):
            if not isinstance(switch, bool):
                raise TypeError(f"{name} must be True or False, got {switch!r}.")
        if isinstance(lock_timeout, bool) or not isinstance(lock_timeout, (int, float)):
            raise TypeError(f"lock_timeout must be a number of seconds, got {lock_timeout!r}.")
        if not lock_timeout >= 0:
            raise ValueError(f"lock_timeout must not be less than 0, got {lock_timeout!r}.")
        self._cluster = cluster
        self.every = Every.parse(every)
        self.progress: Progress | None = None
        self.schedule = Schedule(self.every, budget=budget)
        self._store = CheckpointStore(directory if directory is not None else default_directory())
        self._keep = keep
        self._best = Best.parse(best)
        self._asynchronous = asynchronous
        self._learning_rate = learning_rate
        self._read_only = read_only
        self._lock_timeout = lock_timeout
        self._state: tuple[Any, Any, state.Saveable] | None = None
        self._free: list[dict[str, tensors.Arena]] = []
        self._restored: Restored | None = None
        self._has_restored = False
        self._pid = os.getpid()
        publisher = Publisher(self._store, self._keep, self._best, self.schedule, self._free)
        self._publisher = publisher
        self._writer = BackgroundWriter(publisher, pending=pending, where=self.directory)
        # At the interpreter's end, and when nobody uses it any more, what is under way is finished.
        self._finalizer = weakref.finalize(self, _finish, self._writer)

    def __repr__(self) -> str:
        return f"Checkpointer({self.directory!r})"

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as unseen:  # the first error is the one to raise
            _say(f"checkpoints: {unseen}")

    # --- what there is ---

    @property
    def cluster(self) -> SavingCluster:
        """The cluster.

        Raises:
            CheckpointError: there are several ranks, and nothing says how they talk to each other.
        """
        if self._cluster is None:
            self._cluster = surrounding_cluster()
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: SavingCluster) -> None:
        self._cluster = cluster

    @property
    def directory(self) -> str:
        """The folder."""
        return self._store.directory

    @property
    def best(self) -> Best | None:
        """What makes a checkpoint the best one."""
        return self._best

    @property
    def completed(self) -> Progress | None:
        """The progress of the last save that is on the disk; None before the first."""
        return self._publisher.completed

    @property
    def idle(self) -> bool:
        """Whether a save would not have to wait for the disk."""
        return self._writer.idle

    def checkpoints(self) -> list[str]:
        """Return the checkpoints' names in the order of saving."""
        return self._store.names()

    def pin(self, label: str, name: str | None = None) -> None:
        """Keep a checkpoint until :meth:`unpin`, whatever ``keep`` says. Restore it with ``restore(which=label)``.

        Args:
            label: A name for the reference, which is a link in the folder.
            name: The checkpoint; None for the newest.

        Raises:
            FileNotFoundError: there is no such checkpoint.
        """
        if name is None:
            self.wait()
            name = next(reversed(self.checkpoints()), "checkpoint")
        self._store.pin(name, label)

    def unpin(self, label: str) -> None:
        """Let a checkpoint go that :meth:`pin` kept.

        Raises:
            FileNotFoundError: there is no such label.
        """
        self._store.unpin(label)

    # --- saving ---

    def save(
        self,
        model: Any,
        *,
        epoch: int = 0,
        step: int = 0,
        batch: int = 0,
        position: Any = None,
        metrics: Mapping[str, float] | None = None,
        metadata: Any = None,
        optimizer: Any = None,
        wait: bool = False,
    ) -> None:
        """Save a checkpoint. All ranks may call it; rank 0 alone reads the variables and writes.

        Args:
            model: A Keras model; a PyTorch module; or a mapping of names to numpy arrays, to variables, or to what has
                a ``state_dict``.
            epoch: Finished epochs.
            step: Finished steps over all epochs.
            batch: Finished batches of the epoch under way.
            position: Where the data source is, as JSON knows it.
            metrics: Values at this point; what ``best`` looks at.
            metadata: Anything that JSON knows, to be given back by a restore.
            optimizer: The optimizer; None for the model's own.
            wait: Whether to return only when the checkpoint is on the disk. Without ``asynchronous`` it always is.

        Raises:
            CheckpointWriteError: this save, or an earlier one that was under way, failed.
            CheckpointLockedError: another process writes into the folder.
            CheckpointError: the process is one of several, and no cluster has been given.
            TypeError: metadata, position or an array has no form in a checkpoint.
        """
        began = time.monotonic()
        cluster = self.cluster
        # All ranks: an optimizer's variables may have to be made, which is a common act under some strategies.
        source = self._state_of(model, optimizer)
        groups = source.groups()
        if isinstance(cluster, Counting):
            self.count_from(cluster.saved)
            cluster.saved += 1
        if cluster.rank != 0:
            return
        if os.getpid() != self._pid:
            raise CheckpointError("a forked process cannot save: its parent writes into the same folder.")
        self._lock()
        progress = Progress(epoch=epoch, step=step, batch=batch, position=_as_json("position", position))
        facts = {"size": cluster.size, **source.facts}
        found = {name: _number(value) for name, value in (metrics or {}).items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        kept = _as_json("metadata", metadata)
        ready = time.monotonic()
        self._writer.make_room()
        waited_s = time.monotonic() - ready
        arenas = self._snapshot(groups)
        snapshot_s = time.monotonic() - ready - waited_s
        # From the very beginning: finding many variables takes its time, too.
        self.schedule.saved(step, blocked_s=time.monotonic() - began)
        self._writer.submit(
            Snapshot(
                arenas=arenas,
                progress=progress,
                metrics=numbers,
                metadata=kept,
                facts=facts,
                snapshot_s=snapshot_s,
                waited_s=waited_s,
            )
        )
        self.progress = progress
        if wait or not self._asynchronous:
            self._writer.wait()
            self.schedule.saved(step, blocked_s=time.monotonic() - began)

    def wait(self) -> None:
        """Return when every save is on the disk.

        Raises:
            CheckpointWriteError: one failed.
        """
        self._writer.wait()

    def close(self) -> None:
        """Finish what is under way and let others write into the folder.

        Raises:
            CheckpointWriteError: a save failed, and that has not been raised yet.
        """
        self._finalizer.detach()
        self._writer.close()

    # --- restoring ---

    def restore(self, model: Any = None, *, optimizer: Any = None, which: str = "newest") -> Restored | None:
        """Restore a checkpoint. All ranks must call it; all have the same afterwards.

        Args:
            model: What to fill, as for :meth:`save`: a Keras model must be built. None to get the arrays themselves.
            optimizer: The optimizer; None for the model's own.
            which: ``"newest"`` (that verifies), ``"best"``, or a checkpoint's name or label.

        Returns:
            What was restored; None where there is no checkpoint yet.

        Raises:
            NoUsableCheckpointError: there are checkpoints, and all of them are damaged.
            CheckpointMismatchError: the checkpoint is of another model or optimizer; nothing has been changed.
            CheckpointVersionError: it is of a later format.
            CheckpointError: the process is one of several, and no cluster has been given.
            DamagedCheckpointError: the one asked for by name is damaged.
            FileNotFoundError: there is none of that name.
        """
        found = share(self.cluster, self._load(which) if self.cluster.rank == 0 else None)
        self._has_restored = True
        if found is None:
            return None
        try:
            parsed = {
                name.removesuffix(SUFFIX): tensors.parse(content)
                for name, content in found.files.items()
                if name.endswith(SUFFIX)
            }
        except tensors.TensorsError as error:  # verified, and yet: another program's
            raise CheckpointMismatchError(f"{self.directory}/{found.name} cannot be read: {error}") from error
        size = int(found.manifest.facts.get("size", 1))
        rate_kept = model is not None and self._fill(self._state_of(model, optimizer), found, parsed, size)
        restored = Restored(
            name=found.name,
            progress=found.manifest.progress,
            metrics=found.manifest.metrics,
            metadata=found.manifest.metadata,
            size=size,
            rate_kept=rate_kept,
            arrays=parsed if model is None else {},
            skipped=found.skipped,
        )
        if isinstance(self.cluster, Counting):
            self.cluster.saved = max(self.cluster.saved, restored.serial)
        self.progress = restored.progress
        self._restored = restored
        self._tell(restored)
        return restored

    def callback(self, *, data: Any = None, metadata: Any = None, restore: bool = True) -> Any:
        """Return a Keras callback (for tf_keras and Keras 3) that saves as ``every`` says, and at the end.

        When the training begins it restores the newest checkpoint, unless :meth:`restore` has been called, and lets
        ``fit`` go on with the epoch that comes next. It belongs at the end of the list of callbacks.

        Args:
            data: The data source, if it can continue within an epoch: ``position(epoch, batch)`` gives what JSON
                knows, and ``resume(position)`` continues there and returns whether anything of that epoch is left.
                It may have ``training_begins(steps)``, which gets the number of steps of ``fit``'s epochs and returns
                why it could not do so, or "". Without one, an epoch that was interrupted begins anew.
            metadata: To be kept with each checkpoint; a function of no arguments is called for it.
            restore: Whether to restore at all.
        """
        from container.checkpoint.callback import CheckpointCallback

        return CheckpointCallback(self, data=data, metadata=metadata, restore=restore)

    # --- for the callback ---

    @property
    def has_restored(self) -> bool:
        """Whether a restore has been tried; the same on all ranks."""
        return self._has_restored

    def take_restored(self) -> Restored | None:
        """Return what was restored and no ``fit`` has resumed from yet."""
        restored, self._restored = self._restored, None
        return restored

    def state_bytes(self, model: Any, optimizer: Any = None) -> int | None:
        """Return the size of what a save writes; None for a model that has no variables yet."""
        source = self._state_of(model, optimizer)
        if isinstance(source, state.KerasState) and not source.built:
            return None
        groups = source.groups()
        return sum(slot.spec.bytes for slots in groups.values() for slot in slots)

    def count_from(self, serial: int) -> None:
        """Number what is saved from now on higher than ``serial``.

        A rank that takes over from rank 0 of another host has not seen all that was saved there, and what it saves
        must not look older.
        """
        self._store.floor = max(self._store.floor, serial)

    # --- within ---

    def _lock(self) -> None:
        if self._read_only:
            raise CheckpointError("this Checkpointer cannot write: it was made with read_only=True")
        self._writer.check_open()  # or the folder, which closing has given to others, would be locked for good
        self._store.lock(self._lock_timeout)

    def _state_of(self, model: Any, optimizer: Any) -> state.Saveable:
        known = self._state
        if known is None or known[0] is not model or known[1] is not optimizer:
            known = self._state = (model, optimizer, state_of(model, optimizer))
        return known[2]

    def _snapshot(self, groups: Mapping[str, list[state.ArraySlot]]) -> dict[str, tensors.Arena]:
        """Copy everything into memory of our own, which an earlier snapshot has used if there is such."""
        arenas = self._free.pop() if self._free else {}
        if {group: tuple(slot.spec for slot in slots) for group, slots in groups.items()} != {
            group: arena.specs for group, arena in arenas.items()
        }:
            arenas = {group: tensors.Arena([slot.spec for slot in slots]) for group, slots in groups.items()}
        for group, slots in groups.items():
            views = arenas[group].views
            for slot in slots:
                np.copyto(views[slot.spec.name], slot.read(), casting="no")
        return arenas

    def _load(self, which: str) -> Loaded | Refusal | None:
        """Rank 0's part of a restore; what goes wrong is for all ranks to know."""
        try:
            if not self._read_only and not self._writer.closed:
                # No earlier process may add a checkpoint after we have chosen.
                self._lock()
                self.wait()
            if which == "newest":
                return self._store.read_newest()
            if which == "best":
                if self._best is None:
                    raise ValueError('which="best" needs a metric: Checkpointer(best="val_loss").')
                return self._store.read_best(self._best)
            return self._store.read(which)
        except (CheckpointError, OSError, ValueError) as error:
            if isinstance(error, NoUsableCheckpointError):
                events.emit("checkpoint", action="unusable", damage=[str(damage) for damage in error.skipped])
            return Refusal(error)

    def _fill(
        self,
        target: state.Saveable,
        found: Loaded,
        parsed: Mapping[str, Mapping[str, np.ndarray[Any, Any]]],
        size: int,
    ) -> bool:
        """Compare everything, then assign it; return whether the learning rate was left as it was."""
        loose = isinstance(target, state.KerasState)
        path = os.path.join(self.directory, found.name)
        if isinstance(target, state.KerasState) and not target.built:
            raise CheckpointMismatchError(f"{path} cannot be restored: {target.unbuilt}")
        mine = self._learning_rate == "current" or (self._learning_rate == "auto" and size != self.cluster.size)
        try:
            target.check(found.manifest.facts)
            if isinstance(target, StateDicts):
                return target.fill(found.manifest.facts, parsed, keep_rate=mine)
            groups = target.groups()
            for group, slots in groups.items():
                if group not in parsed:
                    raise CheckpointMismatchError(f"the checkpoint holds no {group}, but only {', '.join(parsed)}.")
                state.compare(group, slots, parsed[group], loose=loose)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(
                f"{path}: {error} Nothing has been restored. Use the same model and optimizer as in the checkpoint, or "
                "start in another folder: Checkpointer(directory=…) or SM_CHECKPOINT_DIR."
            ) from None
        kept = False
        for group, slots in groups.items():
            arrays = parsed[group]
            contents = arrays.values() if loose else [arrays[slot.spec.name] for slot in slots]
            for slot, content in zip(slots, contents, strict=True):
                if mine and group == "optimizer" and loose and state.is_learning_rate(slot.spec.name):
                    kept = True
                else:
                    slot.assign(content)
        return kept

    def _tell(self, restored: Restored) -> None:
        if self.cluster.rank != 0:
            return
        for damage in restored.skipped:
            _say(f"checkpoints: skipped {damage}")
            events.emit("checkpoint", action="skipped", name=damage.name, file=damage.file, reason=damage.reason)
        progress = restored.progress
        within = f", batch {progress.batch}" if progress.batch else ""
        _say(f"checkpoints: restored {restored.name}: epoch {progress.epoch}{within}, step {progress.step}")
        events.emit(
            "checkpoint",
            action="restored",
            name=restored.name,
            epoch=progress.epoch,
            step=progress.step,
            batch=progress.batch,
        )


def default_directory() -> str:
    """Return ``$SM_CHECKPOINT_DIR``, or SageMaker's folder for checkpoints."""
    return os.environ.get(variables.CHECKPOINT_DIR) or f"{layout.DEFAULT_BASE_DIR}/checkpoints"


def _finish(writer: BackgroundWriter[Snapshot]) -> None:
    """Write what is under way; nobody is left to raise to."""
    try:
        writer.close()
    except Exception as error:  # noqa: BLE001 - nobody is left to raise it to
        _say(f"checkpoints: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_json(what: str, value: Any) -> Any:
    """Return a copy of the value as a reader will get it.

    Raises:
        TypeError: JSON has no form for it.
    """
    if value is None:
        return None
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a value that JSON can represent: {error}") from None


def _number(value: Any) -> float | None:
    """Convert a value to a number; None if it is not one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


__all__: Sequence[str] = ["Checkpointer", "Restored", "SavingCluster", "SingleProcess", "default_directory"]
