"""Remove old jobs, caches, and the leftovers of a crashed machine (command ``fleetfit clean``).

:func:`find` lists items and changes nothing. :func:`remove` removes listed items, and checks each item again before the
removal. A running job is never removed, even if the user selects the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from container.contract import variables
from container.contract.frozen import dataclass
from container.contract.names import cut, shown
from container.system import locks, unused
from container.system.files import cache_root, names_in
from container.system.removing import remove_tree
from estimators import backends
from estimators.cli import clean_tuning
from estimators.job import fleets
from estimators.job.errors import BackendError, ConfigurationError, JobNotFoundError, RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord, job_names, jobs_folder
from estimators.tuning.record import tuning_folder

if TYPE_CHECKING:
    from estimators.backends.base import BackendQueries, Leftover

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

#: Upper bound in seconds of the time that a supervisor runs after the end of its job.
_COMPLETING_S = 35.0
#: Name of the folder of a record that is being created or removed: ``.NAME.HEX``.
_ASIDE = re.compile(r"\.[A-Za-z0-9-]+\.[0-9a-f]{8,}")


class ItemKind(enum.Enum):
    """The kinds of items that can be removed."""

    JOB = "job"
    TUNING = "tuning job"
    CACHE = "cache"
    PROCESS = "process"
    FOLDER = "folder"
    CONTAINER = "container"
    NETWORK = "network"
    HOST = "host"
    FLEET = "fleet"
    KEPT = "kept"


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item that can be removed.

    Attributes:
        kind: The item's kind.
        name: The item's name in lists and messages.
        path: The path of the folder if the item is a folder, or None.
        bytes: The item's size on disk, or the resident memory of a process, in bytes.
        why: The reason why the item is listed.
        process: The process if the item is a process, or None.
        leftover: The backend's handle if a backend found the item, or None.
    """

    kind: ItemKind
    name: str
    why: str
    path: Path | None = None
    bytes: int = 0
    process: psutil.Process | None = None
    leftover: Leftover | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The criteria by which jobs and caches are selected for removal.

    Attributes:
        older_than_s: Jobs are selected if they ended at least this number of seconds ago. With None, the age is not a
            criterion.
        keep: The number of jobs to keep. The newest jobs are kept. With None, the number is not a criterion.
        free_bytes: Jobs are selected until their total size reaches this number of bytes. The oldest jobs are selected
            first. With None, the size is not a criterion.
        jobs: The names of jobs to select regardless of their age.
        tunings: The names of tuning jobs to select together with their trials.
        caches: Whether to select the caches.
        leftovers: Whether to search for the leftovers of a crashed machine.
        regions: The region to search for leftovers, by the name of the backend. The mapping contains only backends that
            are searched by request. ``""`` means the default region of the backend's tools.
    """

    older_than_s: float | None = None
    keep: int | None = None
    free_bytes: float | None = None
    jobs: tuple[str, ...] = ()
    tunings: tuple[str, ...] = ()
    caches: bool = False
    leftovers: bool = True
    regions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def takes_jobs(self) -> bool:
        """Return whether ended jobs are selected by their age, number or size."""
        return not (self.older_than_s is None and self.keep is None and self.free_bytes is None)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The result of removing an item.

    Attributes:
        item: The item.
        error: The reason why the item still exists, or None if the item was removed.
    """

    item: Item
    error: str | None = None


def parse_age(text: str) -> float:
    """Convert an age such as ``90s``, ``30m``, ``12h``, ``7d`` or ``2w`` to seconds. The default unit is days.

    Raises:
        ConfigurationError: the text is not an age.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r} is not an age: write a number with s, m, h, d or w, such as 7d or 12h.")
    return float(match[1]) * _SECONDS[match[2].lower() or "d"]


def parse_size(text: str) -> float:
    """Convert a size such as ``500MB``, ``20G`` or ``1.5 TB`` to bytes. Units are powers of 1000.

    Raises:
        ConfigurationError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{shown(text)} is not a size: write a number with k, M, G or T, such as 500M or 20G.")
    return float(match[1]) * _BYTES[match[2].lower()]


def find(selection: Selection, *, home: str | Path | None = None, now: float | None = None) -> list[Item]:
    """Return the items that can be removed. Nothing is changed.

    Args:
        selection: The criteria for jobs and caches.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
        now: The current time, in seconds since the epoch.

    Raises:
        JobNotFoundError: a named job does not exist.
        ConfigurationError: a named job is running, or is a trial of a tuning job that has not ended.
    """
    when = time.time() if now is None else now
    items: list[Item] = []
    if selection.leftovers:
        items += leftover_processes(home)
        items += left_by_backends(home)
        items += _unused_pools(home)
        items += _kept(home)
        items += [
            Item(kind=ItemKind.FOLDER, name=str(path), path=path, bytes=size_of(path), why="not used by any process")
            for path in unused.unused_folders(when)
        ]
        items += _asides(home, when)
    for name, region in selection.regions.items():
        items += left_by(backends.load(name), region, home)
    items += _jobs(selection, home, when)
    if selection.caches:
        items += caches()
    return items


# --- jobs ---


def _jobs(selection: Selection, home: str | Path | None, now: float) -> list[Item]:
    studies = clean_tuning.studies(home)
    needed = clean_tuning.needed(studies)
    tunings = clean_tuning.named(selection.tunings, home)
    named = [JobRecord.open(name, home) for name in dict.fromkeys(selection.jobs)]
    there = {*job_names(home)} - {*selection.jobs}
    named += [JobRecord.open(name, home) for study in tunings for name in study.trials if name in there]
    for record in named:
        if record.name in needed:
            raise ConfigurationError(
                f"job {record.name!r} is a trial of tuning job {needed[record.name]!r}, which has not ended. Stop the "
                f"tuning job first (`fleetfit tuning {needed[record.name]} --stop`)."
            )
        if not _wait_for_supervisor(record):
            raise ConfigurationError(
                f"job {record.name!r} is running. Stop the job first (`fleetfit stop {record.name}`)."
            )
    items = [_job_item(record, "selected by name") for record in named]
    items += [_tuning_item(study, "selected by name") for study in tunings]
    if not selection.takes_jobs:
        return items
    gone = {item.name for item in items if item.kind is ItemKind.JOB}
    ended = [pair for pair in _ended(home) if pair[1].name not in gone and pair[1].name not in needed]
    freed = 0.0
    for end, record in reversed(ended[selection.keep or 0 :]):  # the oldest first
        age = now - end
        if selection.older_than_s is not None and age < selection.older_than_s:
            continue
        if selection.free_bytes is not None and freed >= selection.free_bytes:
            break
        items.append(_job_item(record, f"ended {format_age(age)} ago"))
        freed += items[-1].bytes
    going = {item.name for item in items if item.kind is ItemKind.JOB}
    staying = {*job_names(home)} - going
    left = [study for study in studies if study.record.name not in selection.tunings]
    spent = clean_tuning.spent(left, going, staying, selection.older_than_s, now, all_=selection.keep == 0)
    return items + [_tuning_item(study, "no trials left") for study in spent]


def _tuning_item(study: clean_tuning.Study, why: str) -> Item:
    path = study.record.path
    return Item(kind=ItemKind.TUNING, name=study.record.name, path=path, bytes=size_of(path), why=why)


def finished_jobs(home: str | Path | None = None) -> list[Item]:
    """Return all jobs that have ended, with their sizes. The newest job is first."""
    return [_job_item(record, "over") for _, record in _ended(home)]


def _ended(home: str | Path | None) -> list[tuple[float, JobRecord]]:
    """Return the end time and the record of each job that has ended. The newest job is first."""
    ended: list[tuple[float, JobRecord]] = []
    for name in job_names(home):
        with contextlib.suppress(JobNotFoundError):  # another process has removed the job meanwhile
            record = JobRecord.open(name, home)
            if not (record.is_supervised() or record.queued_file.exists() or _goes_on_elsewhere(record)):
                ended.append((_ended_at(record), record))
    ended.sort(key=lambda pair: pair[0], reverse=True)
    return ended


def _goes_on_elsewhere(record: JobRecord) -> bool:
    """Return whether a job on SageMaker or at a dispatcher had not ended when its record was last updated."""
    try:
        stored = record.stored_status()
    except RecordError:
        return False
    return statuses.lives_elsewhere(stored) and not statuses.is_terminal(stored or {})


def _wait_for_supervisor(record: JobRecord) -> bool:
    """Wait until the supervisor of an ended job has exited, and return whether the record has no supervisor.

    After the job's end, the supervisor may still be completing the provenance. The wait is limited to 35 seconds. If
    the job is still running, return False at once.

    Raises:
        ConfigurationError: the job waits in the queue of an endpoint.
    """
    if record.queued_file.exists():
        raise ConfigurationError(
            f"job {record.name!r} waits in the queue of an endpoint. Stop the job there first (StopTrainingJob)."
        )
    until = time.monotonic() + _COMPLETING_S
    while record.is_supervised():
        if not statuses.is_terminal(record.stored_status() or {}) or time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _job_item(record: JobRecord, why: str) -> Item:
    return Item(kind=ItemKind.JOB, name=record.name, path=record.path, bytes=size_of(record.path), why=why)


def _ended_at(record: JobRecord) -> float:
    """Return the job's end time, in seconds since the epoch.

    If the status has no time or cannot be read, return the time of the record's last modification.
    """
    try:
        status = record.read_status()
        for key in ("TrainingEndTime", "LastModifiedTime", "CreationTime"):
            if isinstance(status.get(key), int | float):
                return float(status[key])
    except (RecordError, KeyError, TypeError):
        pass  # written by a newer version, or damaged: use the folder's modification time
    with contextlib.suppress(OSError):
        return record.path.stat().st_mtime
    return 0.0


def _asides(home: str | Path | None, now: float) -> list[Item]:
    """Return the incomplete records of jobs.

    A record stays incomplete if the process that creates or removes the record is killed.
    """
    return [
        Item(kind=ItemKind.FOLDER, name=path.name, path=path, bytes=size_of(path), why="incomplete record")
        for folder in (jobs_folder(home), tuning_folder(home))
        for path in map(folder.joinpath, names_in(folder))
        if _ASIDE.fullmatch(path.name)
        and path.is_dir()
        and not locks.is_held(path / "lock")
        and unused.untouched(path, now)
    ]


# --- caches ---


def caches() -> list[Item]:
    """Return the folders of ``$FLEETFIT_CACHE``. A removed folder is created again when it is needed."""
    texts = {
        "wheels": "built wheels (building Horovod again takes minutes)",
        "digests": "digests of data",
        "packages": "listings of packages",
        "data": "downloaded S3 objects",
    }
    folder = cache_root()
    return [
        Item(
            kind=ItemKind.CACHE,
            name=name,
            path=folder / name,
            bytes=size_of(folder / name),
            why=texts.get(name, "cache"),
        )
        for name in names_in(folder)
        if name != "locks"  # another process may be waiting for a lock
    ]


# --- leftovers of a crashed machine ---


def leftover_processes(home: str | Path | None = None) -> list[Item]:
    """Return this user's processes that belong to a recorded job without a supervisor.

    Every process of a job has two environment variables. ``FLEETFIT_JOB`` is the job's name, and ``SAGEMAKER_BASE_DIR``
    is the host's folder inside the record. Processes of another ``FLEETFIT_HOME`` are not returned.
    """
    items: list[Item] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended meanwhile
            environment = process.environ() if process.uids().real == os.getuid() else {}
            job = environment.get(variables.JOB_MARK)
            record = _record_of(job, environment, home) if job else None
            if record is None or record.is_supervised():
                continue
            items.append(
                Item(
                    kind=ItemKind.PROCESS,
                    name=f"{process.pid} ({cut(' '.join(process.cmdline()), 60)})",
                    process=process,
                    bytes=process.memory_info().rss,
                    why=f"left by job {job}, whose supervisor is gone",
                )
            )
    return items


def left_by_backends(home: str | Path | None = None) -> list[Item]:
    """Return the leftovers of jobs on all backends, except the backends that are searched only by request."""
    names = [name for name in fleets.names() if not fleets.capabilities(name).searched_by_name]
    return [item for backend in dict.fromkeys(map(backends.load, names)) for item in left_by(backend, "", home)]


def left_by(backend: type[BackendQueries], region: str, home: str | Path | None = None) -> list[Item]:
    """Return the leftovers on a backend that belong to jobs without a supervisor.

    Hosts are returned only if their job has a record in this home.
    """
    items = []
    for left in backend.leftovers(region):
        kind, record = ItemKind(left.kind), jobs_folder(home) / left.job
        if record.is_dir() and left.job and JobRecord(record).is_supervised():
            continue
        if kind is ItemKind.HOST and not record.is_dir():
            continue
        text = f"{left.text}, " if left.text else ""
        items.append(
            Item(
                kind=kind, name=left.name, why=f"{text}left by job {left.job}, whose supervisor is gone", leftover=left
            )
        )
    return items


def _unused_pools(home: str | Path | None) -> list[Item]:
    """Return folders of warm containers that no job uses or can reuse.

    These folders may contain secrets.
    """
    from estimators.backends.docker import kept

    folder = jobs_folder(home).parent / "warm"
    return [
        Item(kind=ItemKind.FOLDER, name=f"warm/{name}", path=folder / name, why="no kept container uses this folder")
        for name in names_in(folder)
        if not kept.ContainerPool(folder / name).in_use
    ]


def _kept(home: str | Path | None) -> list[Item]:
    """Return the processes that are kept for the next job of this home and are currently not used."""
    from estimators.backends.hosts import kept

    return [
        Item(kind=ItemKind.KEPT, name=str(one), why="kept for the next job", leftover=kept.leftover(one))
        for one in kept.find(jobs_folder(home).parent)
        if one.until is not None
    ]


def _record_of(job: str, environment: dict[str, str], home: str | Path | None) -> JobRecord | None:
    """Return the record of the job that a process names in its environment.

    Return None if the record is not in this home.
    """
    base = environment.get(variables.BASE_DIR, "")
    parts = Path(base).parts
    path = jobs_folder(home) / job
    # <home>/jobs/<name>/hosts/<host>/ml
    told = len(parts) > 6 and parts[-1] == "ml" and parts[-3] == "hosts" and parts[-4] == job and parts[-5] == "jobs"
    if told and Path(*parts[:-3]).resolve() != path.resolve():
        return None
    return JobRecord(path) if path.is_dir() else None


# --- removing ---


def remove(items: Iterable[Item]) -> list[Removal]:
    """Remove items that :func:`find` returned. Processes are removed first.

    A job that was started after the call of :func:`find` is not removed. A process that has reused the PID of a listed
    process is not killed.
    """
    # A network can only be removed when no container is attached.
    first = (ItemKind.PROCESS, ItemKind.HOST, ItemKind.CONTAINER, ItemKind.NETWORK)
    ordered = sorted(items, key=lambda item: first.index(item.kind) if item.kind in first else len(first))
    return [_remove(item) for item in ordered]


def _remove(item: Item) -> Removal:
    try:
        if item.process is not None:
            _kill(item.process)
        elif item.leftover is not None:
            item.leftover.remove()
        elif item.path is not None and item.kind in (ItemKind.JOB, ItemKind.TUNING):
            _remove_record(item.path)
        elif item.path is not None:
            _remove_folder(item.path)
    except (OSError, psutil.Error, ConfigurationError, BackendError) as error:
        return Removal(item=item, error=str(error))
    return Removal(item=item)


def _remove_record(path: Path) -> None:
    """Remove a record while holding the record's lock.

    While the lock is held, readers do not report the record as a running job or as a job that lost its supervisor.
    """
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        _remove_folder(path)
        return
    try:
        if not locks.take_from_askers(descriptor):
            raise ConfigurationError("it is running")
        _remove_folder(path)
    finally:
        os.close(descriptor)


def _remove_folder(path: Path) -> None:
    # Rename first: a reader sees the whole record or no record, and find() lists the rest of an interrupted removal.
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = path.with_name(f".{path.name.lstrip('.').partition('.')[0]}.{secrets.token_hex(6)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    remove_tree(aside)


def _kill(process: psutil.Process) -> None:
    """Kill a process and its descendants.

    psutil does not kill a process that has reused the PID. Toolkits usually kill their child processes. The descendants
    are killed here because a toolkit that is killed during its shutdown cannot kill its child processes.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = process.children(recursive=True)
        for one in (process, *tree):
            if one.pid != os.getpid():
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


# --- sizes, ages, processes ---


def size_of(path: Path) -> int:
    """Return the number of bytes that a folder occupies on disk.

    A file with several hard links is counted once. Symbolic links are not followed.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    stack = [path]
    while stack:
        current = stack.pop()
        try:
            stat = current.lstat()
            if stat.st_nlink > 1 and not current.is_dir():
                if (stat.st_dev, stat.st_ino) in seen:
                    continue
                seen.add((stat.st_dev, stat.st_ino))
            total += stat.st_blocks * 512
            if current.is_dir() and not current.is_symlink():
                stack += [Path(entry.path) for entry in os.scandir(current)]
        except OSError:
            continue  # removed meanwhile, or no permission
    return total


def format_age(seconds: float) -> str:
    """Return a duration as text, such as ``45 s``, ``12 min``, ``5 h`` or ``3 days``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // size))} {unit}"
    return f"{int(seconds // 86400)} days"
