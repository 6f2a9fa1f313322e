"""Implement the Checkpointer, which saves checkpoints while a model trains, and restores them on every rank."""

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
from container.contract.frozen import dataclass
from container.contract.names import unknown

_LEARNING_RATES = ("auto", "saved", "current")


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result of a restore.

    Attributes:
        name: Name of the checkpoint.
        progress: The training's progress at the save.
        metrics: Values of metrics at the save.
        metadata: The metadata that the user passed to the save.
        size: Number of ranks of the training that saved the checkpoint.
        rate_kept: Whether the optimizer kept the script's learning rate instead of using the saved learning rate.
        arrays: The saved arrays by group and name, if ``restore`` was called without a model. Otherwise empty.
        skipped: The damaged checkpoints that are newer than the restored checkpoint, the newest first.
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
        """Return the checkpoint's number. A checkpoint with a higher number was saved later."""
        return serial_of(self.name)

    @property
    def epoch(self) -> int:
        """Return the number of finished epochs, to be used as Keras' ``initial_epoch``."""
        return self.progress.epoch

    @property
    def step(self) -> int:
        """Return the number of finished steps over all epochs."""
        return self.progress.step


class Checkpointer:
    """Save and restore checkpoints in a folder.

    Args:
        directory: The folder for the checkpoints. If None, the folder is ``$SM_CHECKPOINT_DIR``, or
            ``/opt/ml/checkpoints`` if this variable is not set.
        keep: Number of newest checkpoints to keep. None to keep all checkpoints.
        best: The metric that determines the best checkpoints: ``"val_loss"``, ``"max f1"``, or a :class:`Best`. The
            best checkpoints are also kept.
        every: The interval at which :meth:`callback` saves: a number of steps, ``"30s"``, ``"5 min"``, ``"epoch"``,
            ``"2 epochs"``, or ``"auto"``. With ``"auto"``, saves are as frequent as ``budget`` allows.
        asynchronous: Whether a save returns as soon as the variables are copied. A thread then writes the copy to the
            disk. If false, a save returns only when the checkpoint is on the disk.
        cluster: The cluster that ``container.distributed.init()`` returns. ``cluster.callbacks(checkpointer=…)`` sets
            this value. If None, the cluster is determined when the Checkpointer is first used. If ``init()`` has been
            called by then, the cluster of ``init()`` is used. Otherwise a single process is assumed. Pass a
            :class:`SingleProcess` if the script saves and restores on only one of its ranks.
        budget: The maximum fraction of the training time that saving may cost if ``every`` is "auto" (0.01 means 1 %).
        pending: Maximum number of snapshots (copies of the variables) in memory that are not on the disk yet. A save
            that would exceed this number waits.
        learning_rate: The optimizer's learning rate after a restore. ``"saved"`` means the saved learning rate.
            ``"current"`` means the script's learning rate. ``"auto"`` means the saved learning rate if the cluster has
            the same size as at the save, and otherwise the script's learning rate. If a scheduler of PyTorch is
            restored too, and has changed the saved rate, the script's rate is changed in the same proportion.
        read_only: Whether the Checkpointer only restores and never saves. If true, the Checkpointer can restore while
            another process saves.
        lock_timeout: Maximum number of seconds to wait if another process writes into the folder. Waiting helps if that
            process is about to exit.

    Attributes:
        every: The interval at which :meth:`callback` saves.
        progress: The training's progress at the last restore or, on rank 0, at the last save. None before the first
            restore or save.
        schedule: The schedule that decides when :meth:`callback` saves.

    Raises:
        TypeError: a switch is not a bool, or ``lock_timeout`` is not a number.
        ValueError: an argument is invalid. Errors of the folder are raised only at the first save or restore.
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
        # At the interpreter's end, or when the Checkpointer is garbage-collected, pending saves are finished.
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
        except CheckpointError as unseen:  # the error of the with block is raised instead
            _say(f"checkpoints: {unseen}")

    # --- properties and references ---

    @property
    def cluster(self) -> SavingCluster:
        """Return the cluster whose ranks share the checkpoints.

        Raises:
            CheckpointError: the environment variables describe several ranks, but there is no cluster through which the
                ranks can communicate.
        """
        if self._cluster is None:
            self._cluster = surrounding_cluster()
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: SavingCluster) -> None:
        self._cluster = cluster

    @property
    def directory(self) -> str:
        """Return the folder of the checkpoints."""
        return self._store.directory

    @property
    def best(self) -> Best | None:
        """Return the metric that determines the best checkpoints, or None."""
        return self._best

    @property
    def completed(self) -> Progress | None:
        """Return the progress of the newest checkpoint that was written completely to the disk. Return None if there is
        none yet.
        """
        return self._publisher.completed

    @property
    def idle(self) -> bool:
        """Return whether a save could start without waiting for the disk."""
        return self._writer.idle

    def checkpoints(self) -> list[str]:
        """Return the checkpoints' names in the order of saving."""
        return self._store.names()

    def pin(self, label: str, name: str | None = None) -> None:
        """Prevent the deletion of a checkpoint until :meth:`unpin` is called, regardless of ``keep``.
        ``restore(which=label)`` restores the checkpoint.

        Args:
            label: A name for the checkpoint. A link with this name is created in the folder.
            name: The name of the checkpoint. None for the newest checkpoint.

        Raises:
            FileNotFoundError: there is no checkpoint of that name.
            ValueError: the label is not valid.
        """
        if name is None:
            self.wait()
            name = next(reversed(self.checkpoints()), "checkpoint")
        self._store.pin(name, label)

    def unpin(self, label: str) -> None:
        """Remove a label that :meth:`pin` created. The checkpoint may then be deleted.

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
        """Save a checkpoint. All ranks may call this method. Only rank 0 reads the variables and writes the checkpoint.

        Args:
            model: A Keras model, a PyTorch module, or a mapping. The mapping's keys are names. The mapping's values are
                numpy arrays, variables, or objects with a ``state_dict``.
            epoch: Number of finished epochs.
            step: Number of finished steps over all epochs.
            batch: Number of finished batches of the current epoch.
            position: Position of the data source, as a JSON value.
            metrics: Values of metrics at this point, by name. Without a value for the metric of ``best``, this
                checkpoint is never one of the best checkpoints.
            metadata: Any JSON value. A restore returns this value.
            optimizer: The optimizer. None for the optimizer that the model was compiled with.
            wait: Whether to return only when the checkpoint is on the disk. If ``asynchronous`` is False, the method
                always waits.

        Raises:
            CheckpointWriteError: this save, or an earlier pending save, failed.
            CheckpointLockedError: another process writes into the folder.
            CheckpointError: the process is one of several ranks, and the Checkpointer has no cluster. Also raised if
                the Checkpointer only reads, or if the process was forked from the process that created it.
            ValueError: the Checkpointer is closed, or ``epoch``, ``step`` or ``batch`` is not a number of at least 0.
            TypeError: ``metadata``, ``position`` or an array cannot be stored in a checkpoint.
        """
        began = time.monotonic()
        cluster = self.cluster
        # Call this on all ranks: it may create the optimizer's variables, which is a collective operation under some
        # strategies.
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
        # Measured from the very beginning, because finding many variables also takes time.
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
        """Wait until all saved checkpoints are on the disk.

        Raises:
            CheckpointWriteError: a save failed.
        """
        self._writer.wait()

    def close(self) -> None:
        """Wait for pending saves, and release the folder so that other processes can write into it.

        Raises:
            CheckpointWriteError: a save failed, and its error was not raised yet.
        """
        self._finalizer.detach()
        self._writer.close()

    # --- restoring ---

    def restore(self, model: Any = None, *, optimizer: Any = None, which: str = "newest") -> Restored | None:
        """Restore a checkpoint. All ranks must call this method, and all ranks restore the same checkpoint.

        Args:
            model: The object to restore into, as for :meth:`save`. A Keras model must be built. If None, the arrays are
                returned in :attr:`Restored.arrays`.
            optimizer: The optimizer. None for the optimizer that the model was compiled with.
            which: ``"newest"`` (the newest undamaged checkpoint), ``"best"``, or a checkpoint's name or label.

        Returns:
            The restored checkpoint, or None if there is no checkpoint yet.

        Raises:
            NoUsableCheckpointError: there are checkpoints, and all of them are damaged.
            CheckpointMismatchError: the checkpoint belongs to a different model or optimizer. Nothing has been changed,
                except for objects that the message names.
            CheckpointVersionError: this version of fleetfit cannot read the checkpoint's format.
            CheckpointError: the process is one of several ranks, and the Checkpointer has no cluster.
            DamagedCheckpointError: the checkpoint that ``which`` names is damaged.
            CheckpointLockedError: another process writes into the folder, and ``read_only`` is false.
            CheckpointWriteError: ``read_only`` is false, and the folder cannot be written or an earlier save failed.
            FileNotFoundError: there is no checkpoint of that name, or ``which`` is "best" and no checkpoint has the
                metric.
            ValueError: ``which`` is "best", and the Checkpointer was created without ``best``.
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
        except tensors.TensorsError as error:  # the file matches its checksum, but another program wrote it
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
        """Return a Keras callback (for tf_keras and Keras 3) that saves at the interval ``every``, and at the end of
        the training.

        When the training begins, the callback restores the newest checkpoint, unless :meth:`restore` has been called
        before. ``fit`` then continues after the last saved epoch or batch. Put the callback at the end of the list of
        callbacks.

        Args:
            data: The data source, if the data source can continue within an epoch. The method ``position(epoch,
                batch)`` of the data source returns a JSON value. The method ``resume(position)`` continues at that
                position, and returns whether any batches of that epoch are left. The optional method
                ``training_begins(steps)`` gets the number of steps in ``fit``'s epochs. ``training_begins`` returns ""
                if the data source can continue within an epoch, and otherwise the reason. Without ``data``, an
                interrupted epoch starts over.
            metadata: Metadata to store with each checkpoint, or a function without arguments that returns the metadata.
            restore: Whether to restore a checkpoint when the training begins.
        """
        from container.checkpoint.callback import CheckpointCallback

        return CheckpointCallback(self, data=data, metadata=metadata, restore=restore)

    # --- for the callback ---

    @property
    def has_restored(self) -> bool:
        """Return whether :meth:`restore` has been called. The result is the same on all ranks."""
        return self._has_restored

    def take_restored(self) -> Restored | None:
        """Return the checkpoint of the last restore. Return None if an earlier call has already returned it.

        Therefore only one ``fit`` continues from the checkpoint.
        """
        restored, self._restored = self._restored, None
        return restored

    def state_bytes(self, model: Any, optimizer: Any = None) -> int | None:
        """Return the number of bytes that a save writes. Return None for a model that has no variables yet."""
        source = self._state_of(model, optimizer)
        if isinstance(source, state.KerasState) and not source.built:
            return None
        groups = source.groups()
        return sum(slot.spec.bytes for slots in groups.values() for slot in slots)

    def count_from(self, serial: int) -> None:
        """Give the next checkpoints numbers above ``serial``.

        A rank that replaces rank 0 on another host has not seen all checkpoints that were saved on the previous host.
        The checkpoints of this rank must get higher numbers, so that these checkpoints are recognised as newer.
        """
        self._store.floor = max(self._store.floor, serial)

    # --- private methods ---

    def _lock(self) -> None:
        if self._read_only:
            raise CheckpointError("this Checkpointer cannot write: it was made with read_only=True")
        self._writer.check_open()  # otherwise the folder, which close() released, would stay locked
        self._store.lock(self._lock_timeout)

    def _state_of(self, model: Any, optimizer: Any) -> state.Saveable:
        known = self._state
        if known is None or known[0] is not model or known[1] is not optimizer:
            known = self._state = (model, optimizer, state_of(model, optimizer))
        return known[2]

    def _snapshot(self, groups: Mapping[str, list[state.ArraySlot]]) -> dict[str, tensors.Arena]:
        """Copy all variables into the Checkpointer's memory. If an earlier snapshot has the same layout, reuse the
        memory of that snapshot.
        """
        arenas = self._free.pop() if self._free else {}
        if {group: tuple(slot.spec for slot in slots) for group, slots in groups.items()} != {
            group: arena.specs for group, arena in arenas.items()
        }:
            arenas = {group: tensors.Arena([slot.spec for slot in slots]) for group, slots in groups.items()}
        for group, slots in groups.items():
            views = arenas[group].views
            for slot in slots:
                np.copyto(views[slot.spec.name], slot.read(), casting="equiv")  # the byte order may differ
        return arenas

    def _load(self, which: str) -> Loaded | Refusal | None:
        """Read the checkpoint to restore. Only rank 0 calls this method. If the checkpoint cannot be read, return the
        error instead of raising it, so that rank 0 can send the error to all ranks.
        """
        try:
            if not self._read_only and not self._writer.closed:
                # Once this process has chosen a checkpoint, an earlier process must not add a newer one.
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
        """Compare all variables with the checkpoint, then assign the saved values.

        Returns:
            Whether the optimizer kept its current learning rate.

        Raises:
            CheckpointMismatchError: the checkpoint belongs to a different model or optimizer.
        """
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
                f"{path}: {error} Possibly changed: {', '.join(error.changed) or 'nothing'}. Use the checkpoint's "
                "model and optimizer, or start in another folder: Checkpointer(directory=…) or SM_CHECKPOINT_DIR.",
                error.changed,
            ) from error.__cause__
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
    """Return ``$SM_CHECKPOINT_DIR``. If this variable is not set, return ``/opt/ml/checkpoints``."""
    return os.environ.get(variables.CHECKPOINT_DIR) or f"{layout.DEFAULT_BASE_DIR}/checkpoints"


def _finish(writer: BackgroundWriter[Snapshot]) -> None:
    """Wait for pending saves. Print an error instead of raising it, because no caller is left that could handle the
    error.
    """
    try:
        writer.close()
    except Exception as error:  # noqa: BLE001 - there is no caller left to raise to
        _say(f"checkpoints: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_json(what: str, value: Any) -> Any:
    """Encode the value as JSON and decode it again, so that a save stores the value that a restore will return. For
    example, a tuple becomes a list.

    Raises:
        TypeError: JSON cannot represent the value.
    """
    if value is None:
        return None
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a value that JSON can represent: {error}") from None


def _number(value: Any) -> float | None:
    """Convert a value to a float. Return None if the value is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


__all__: Sequence[str] = ["Checkpointer", "Restored", "SavingCluster", "SingleProcess", "default_directory"]
