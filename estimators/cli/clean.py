"""``fleetfit clean``: removes old jobs, caches, and what a crashed machine left behind.

:func:`find` looks and changes nothing; :func:`remove` acts on what was found and looks again at each thing before it
does. A job that runs is never removed, whatever is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from container.contract import variables
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
    from estimators.backends.base import Backend, Leftover

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

#: How long a supervisor may stay after the end of its job, with room to spare.
_COMPLETING_S = 35.0
#: A record that is being made, or was being removed: ``.NAME.HEX``.
_ASIDE = re.compile(r"\.[A-Za-z0-9-]+\.[0-9a-f]{8,}")


class ItemKind(enum.Enum):
    """What would be removed."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that can be removed.

    Attributes:
        kind: What it is.
        name: What to call it.
        path: The folder, for what is one.
        bytes: What it occupies on disk, or a process's resident memory.
        why: Why it is listed.
        process: The process, for what is one.
        leftover: What a backend has found, for what it has.
    """

    kind: ItemKind
    name: str
    why: str
    path: Path | None = None
    bytes: int = 0
    process: psutil.Process | None = None
    leftover: Leftover | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which jobs and caches to look for.

    Attributes:
        older_than_s: Jobs that ended at least this many seconds ago; None for no bound.
        keep: The newest so many of the jobs are kept.
        free_bytes: Jobs are taken, the oldest first, until they hold so many bytes; None for no bound.
        jobs: Jobs by name, whatever their age.
        tunings: Tuning jobs by name, which go with their trials.
        caches: Whether to remove the caches.
        leftovers: Whether to look for what a crashed machine left.
        regions: The backends that are searched by name -> where; "": where their tools look by themselves.
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
        """Whether it takes finished jobs by anything but their names."""
        return not (self.older_than_s is None and self.keep is None and self.free_bytes is None)

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise ConfigurationError(f"keep must be a number of jobs, at least 0; got {self.keep!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """What became of an item.

    Attributes:
        item: The item.
        error: Why it is still there; None when it is gone.
    """

    item: Item
    error: str | None = None


def parse_age(text: str) -> float:
    """``90s``, ``30m``, ``12h``, ``7d``, ``2w`` in seconds; a bare number means days.

    Raises:
        ConfigurationError: it is none of these.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r} is not an age: write a number with s, m, h, d or w, such as 7d or 12h.")
    return float(match[1]) * _SECONDS[match[2].lower() or "d"]


def parse_size(text: str) -> float:
    """``500MB``, ``20G``, ``1.5 TB`` in bytes: powers of 1000, as sizes are shown.

    Raises:
        ConfigurationError: it is none of these.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{shown(text)} is not a size: write a number with k, M, G or T, such as 500M or 20G.")
    return float(match[1]) * _BYTES[match[2].lower()]


def find(selection: Selection, *, home: str | Path | None = None, now: float | None = None) -> list[Item]:
    """What there is to remove; changes nothing.

    Args:
        selection: Which jobs and caches.
        home: Instead of ``$FLEETFIT_HOME``.
        now: The time, in seconds since the epoch.

    Raises:
        JobNotFoundError: a job that was named does not exist.
        ConfigurationError: a job that was named is running, or a trial of a tuning job that is not over.
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
    """The jobs that are over, the newest first, with what each holds; whether to remove them is not looked at."""
    return [_job_item(record, "over") for _, record in _ended(home)]


def _ended(home: str | Path | None) -> list[tuple[float, JobRecord]]:
    """When each job that is over ended, and its record; the newest first."""
    ended: list[tuple[float, JobRecord]] = []
    for name in job_names(home):
        with contextlib.suppress(JobNotFoundError):  # somebody else removed it meanwhile
            record = JobRecord.open(name, home)
            if not (record.is_supervised() or record.queued_file.exists() or _goes_on_elsewhere(record)):
                ended.append((_ended_at(record), record))
    ended.sort(key=lambda pair: pair[0], reverse=True)
    return ended


def _goes_on_elsewhere(record: JobRecord) -> bool:
    """Whether it is the record of a job on SageMaker that was not over when it was last seen."""
    try:
        stored = record.stored_status()
    except RecordError:
        return False
    return statuses.lives_elsewhere(stored) and not statuses.is_terminal(stored or {})


def _wait_for_supervisor(record: JobRecord) -> bool:
    """Whether a record is free; after a job's end its supervisor stays a little to complete the provenance."""
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
    """When a job ended, or the record was last written where its status does not tell or cannot be read."""
    try:
        status = record.read_status()
        for key in ("TrainingEndTime", "LastModifiedTime", "CreationTime"):
            if isinstance(status.get(key), int | float):
                return float(status[key])
    except (RecordError, KeyError, TypeError):
        pass  # of a newer version, or damaged: its files' times say enough
    with contextlib.suppress(OSError):
        return record.path.stat().st_mtime
    return 0.0


def _asides(home: str | Path | None, now: float) -> list[Item]:
    """Records that were being made or removed when their process was killed."""
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
    """The parts of ``$FLEETFIT_CACHE``; all of them are made again when they are needed."""
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
        if name != "locks"  # somebody may be waiting for one
    ]


# --- what a crashed machine left ---


def leftover_processes(home: str | Path | None = None) -> list[Item]:
    """This user's processes that belong to a job of this home whose supervisor is gone.

    Every process of a job carries its name (``FLEETFIT_JOB``) and the host's tree (``SAGEMAKER_BASE_DIR``), which lies
    in the record. Those of another ``FLEETFIT_HOME`` are left alone.
    """
    items: list[Item] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
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
    """What jobs have left on all backends that are not searched by name."""
    names = [name for name in fleets.names() if not fleets.capabilities(name).searched_by_name]
    return [item for backend in dict.fromkeys(map(backends.load, names)) for item in left_by(backend, "", home)]


def left_by(backend: type[Backend], region: str, home: str | Path | None = None) -> list[Item]:
    """What jobs whose supervisor is gone have left where their hosts were; hosts, of jobs of this home alone."""
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
    """Folders of warm containers that no job uses or may still take: they hold what the containers saw of secrets."""
    from estimators.backends.docker import kept

    folder = jobs_folder(home).parent / "warm"
    return [
        Item(kind=ItemKind.FOLDER, name=f"warm/{name}", path=folder / name, why="no kept container uses this folder")
        for name in names_in(folder)
        if not kept.ContainerPool(folder / name).in_use
    ]


def _kept(home: str | Path | None) -> list[Item]:
    """What is kept for the next job of this home, and no job has."""
    from estimators.backends.hosts import kept

    return [
        Item(kind=ItemKind.KEPT, name=str(one), why="kept for the next job", leftover=kept.leftover(one))
        for one in kept.find(jobs_folder(home).parent)
        if one.until is not None
    ]


def _record_of(job: str, environment: dict[str, str], home: str | Path | None) -> JobRecord | None:
    """The record of the job that a process says it belongs to; None when that cannot be told."""
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
    """Remove what :func:`find` found, processes first.

    A job that has begun to run in between, a process number that now is another process's: both are left alone.
    """
    first = (
        ItemKind.PROCESS,
        ItemKind.HOST,
        ItemKind.CONTAINER,
        ItemKind.NETWORK,
    )  # a network goes when nothing is in it
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
    """Remove a record, holding its lock, so that nobody takes it for a job that runs or lost its supervisor."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        _remove_folder(path)
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError("it is running") from None
        _remove_folder(path)
    finally:
        os.close(descriptor)


def _remove_folder(path: Path) -> None:
    # Renamed first: a reader sees the whole record or none, and what an interrupted removal leaves is found again.
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
    """End a process with all that it has started; psutil leaves alone a process that has been given its number since.

    Toolkits end what they have started, whatever it calls itself; one that is killed in the middle of that cannot.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = process.children(recursive=True)
        for one in (process, *tree):
            if one.pid != os.getpid():
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


# --- sizes, ages, processes ---


def size_of(path: Path) -> int:
    """Bytes that a folder occupies on disk; files with several names count once, links are not followed."""
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
            continue  # gone meanwhile, or not permitted
    return total


def format_age(seconds: float) -> str:
    """``45 s``, ``12 min``, ``5 h``, ``3 days``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // size))} {unit}"
    return f"{int(seconds // 86400)} days"
