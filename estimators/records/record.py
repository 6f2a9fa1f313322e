"""A job's record: all information about a job, as files under ``$FLEETFIT_HOME/jobs/<name>/``.

Guarantees:

* A name is claimed by one creator only, and a record becomes visible only with its lock held.
* The lock is held from the creation until the supervisor ends, without a gap: the creator passes the open file
  description that holds the lock to the supervisor. A record whose lock is free and whose status is not terminal reads
  as Failed, "supervisor lost".
* Once the supervisor runs, only the supervisor writes; readers in any process see whole files.
* Only the user can access the files (folders 0700, files 0600).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from container.contract.layout import MLTree
from container.contract.membership import natural_key
from container.contract.names import nearest, shown
from container.contract.wire import Event
from container.system import locks
from container.system.removing import remove_tree
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError, RecordError
from estimators.records import status as statuses
from estimators.records.log_files import log_stem, process_of
from estimators.records.private_files import HOME_VARIABLE, explained, open_private, replace_json, reserve, tail

#: #: A file in a record: the hosts that a function of the caller has named, one per line, for the supervisor to read.
DISCOVERED = "discovered"
#: SageMaker's pattern for TrainingJobName.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class _PathOf:
    """A file or folder of a record, by the name that it has there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, record: JobRecord, owner: type[JobRecord]) -> Path:
        return record.path / self._name


class JobRecord:
    """The record of one job.

    Use :meth:`create`, :meth:`open` or, in the supervisor, :meth:`adopt` to get an instance.

    Attributes:
        path: The record's folder.
        lock_fd: The descriptor that holds the lock, in its creator and in the supervisor; None in readers.
    """

    def __init__(self, path: Path, *, lock_fd: int | None = None) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self._torn = False
        self._events_fd: int | None = None

    def __repr__(self) -> str:
        return f"JobRecord({str(self.path)!r})"

    # # --- creating and opening ---

    @classmethod
    def create(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Claim a name and acquire the record's lock; arguments and errors are those of :meth:`stage`."""
        record = cls.stage(name, home)
        try:
            record.publish(name)
        except BaseException:
            record.discard()
            raise
        return record

    @classmethod
    def stage(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Create an invisible record, to be filled and then made visible by :meth:`publish`.

        If the process is killed before, the name stays free, and ``fleetfit clean`` removes the folder.

        Args:
            name: The job's name.
            home: The folder to use instead of ``$FLEETFIT_HOME``.

        Raises:
            ConfigurationError: SageMaker would reject the name.
            JobExistsError: the name is taken.
            RecordError: the folder cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"job name {name!r} is not valid. As on SageMaker, a name has 1 to 63 letters, digits and dashes, "
                "and begins and ends with a letter or digit."
            )
        jobs = jobs_folder(home)
        path = jobs / name
        aside = jobs / f".{name}.{os.urandom(6).hex()}"
        with explained(path, "create"):
            try:
                jobs.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                jobs.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError as error:  # a file system on which no folders can be made
                raise OSError(errno.EACCES, "the file system does not allow new folders") from error
            if path.exists():
                raise _taken(path)
            aside.mkdir(mode=0o700)
            lock_fd = None
            try:
                lock_fd = open_private(aside / "lock", os.O_RDWR | os.O_CREAT)
                fcntl.flock(lock_fd, fcntl.LOCK_EX)
                reserve(aside / ".reserve")
                for folder in ("hosts", "output", "checkpoints"):
                    (aside / folder).mkdir(mode=0o700)
            except BaseException:
                if lock_fd is not None:
                    os.close(lock_fd)
                remove_tree(aside, ignore_errors=True)
                raise
        return cls(aside, lock_fd=lock_fd)

    def publish(self, name: str) -> None:
        """Move a staged record, whose lock is held, to its final place, atomically: only one creator succeeds.

        Raises:
            JobExistsError: the name is taken; the record is still staged.
            RecordError: the folder cannot be written.
        """
        path = self.path.with_name(name)
        with explained(path, "create"):
            try:
                os.rename(self.path, path)  # fails if the name has a record, which is never empty
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise _taken(path) from None
                raise
        self.path = path

    @classmethod
    def open(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Open the record of a job.

        Raises:
            JobNotFoundError: the name has no record; the message suggests the nearest name.
        """
        if not isinstance(name, str):
            raise ConfigurationError(f"the name of a training job must be a string; got {shown(name)}.")
        path = jobs_folder(home) / name
        if not _NAME.fullmatch(name) or not path.is_dir():
            guess = nearest(name, job_names(home))
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise JobNotFoundError(f"there is no training job {name!r} under {path.parent}.{hint}")
        return cls(path)

    @classmethod
    def adopt(cls, path: str | Path, lock_fd: int) -> JobRecord:
        """Open a record as its supervisor, with a lock that was passed on; children do not inherit the lock."""
        os.set_inheritable(lock_fd, False)
        return cls(Path(path), lock_fd=lock_fd)

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """Return the folder that ``FLEETFIT_HOME`` names."""
        return self.path.parent.parent

    # --- the lock ---

    def lock(self) -> bool:
        """Acquire the lock of a record that has no supervisor, or none any more.

        Returns:
            Whether the lock was acquired.

        Raises:
            RecordError: the record is gone, or cannot be written.
        """
        with explained(self.lock_file, "open"):
            descriptor = open_private(self.lock_file, os.O_RDWR | os.O_CREAT)
        if not locks.take_from_askers(descriptor):
            os.close(descriptor)
            return False
        self.lock_fd = descriptor
        return True

    def release(self) -> None:
        """Close this process's descriptors; the lock is released when its last copy is closed."""
        for descriptor in (self.lock_fd, self._events_fd):
            if descriptor is not None:
                os.close(descriptor)
        self.lock_fd = self._events_fd = None

    def is_supervised(self) -> bool:
        """Return whether a process holds the lock: a supervisor, or a creator that is about to start one."""
        if self.lock_fd is not None:
            return True
        return locks.is_held(self.lock_file)

    def discard(self) -> None:
        """Remove a record whose job was never started, so that its name can be used again."""
        remove_tree(self.path, ignore_errors=True)
        self.release()

    # --- files and folders ---

    #: Held while the job has a supervisor.
    lock_file = _PathOf("lock")
    #: The CreateTrainingJob request.
    request_file = _PathOf("request.json")
    #: The RunOptions.
    options_file = _PathOf("options.json")
    #: The last status.
    status_file = _PathOf("status.json")
    #: One JSON object per line.
    events_file = _PathOf("events.jsonl")
    #: Where the job came from.
    provenance_file = _PathOf("provenance.json")
    #: What the caller found out for the supervisor; see :meth:`estimators.backends.base.Backend.found`.
    found_file = _PathOf("found.json")
    #: What an endpoint keeps of the job: its client's request as it came, tags, later changes.
    asked_file = _PathOf("service.json")
    #: The snapshot of the user's code.
    source_dir = _PathOf("source")
    #: What the supervisor itself printed: empty unless something is wrong with it.
    supervisor_log = _PathOf("supervisor.log")
    #: The supervisor's socket; connect by :mod:`estimators.client.ipc_client`, since the path may be too long.
    control_socket = _PathOf("control.sock")
    #: There while the job waits in an endpoint's queue: it has no supervisor yet, and is not lost.
    queued_file = _PathOf("queued")
    #: One folder per host.
    hosts_dir = _PathOf("hosts")
    #: ``model.tar.gz`` and ``output.tar.gz``.
    output_dir = _PathOf("output")
    #: The checkpoints of a job that names no other place for them.
    checkpoints_dir = _PathOf("checkpoints")

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that have a folder, in natural order."""
        return sorted(_subfolders(self.hosts_dir), key=natural_key)

    def host_dir(self, host: str) -> Path:
        """Return one host's folder.

        Raises:
            ValueError: the name is not valid for a host (it could lead out of the record).
        """
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host's name.")
        return self.hosts_dir / host

    def tree(self, host: str) -> MLTree:
        """Return one host's ``/opt/ml`` tree."""
        return MLTree(self.host_dir(host) / "ml")

    def log_dir(self, host: str, attempt: int = 0) -> Path:
        """Return the folder of the logs of one host's processes in one attempt."""
        return self.host_dir(host) / "logs" / f"attempt-{attempt}"

    def processes(self, host: str) -> set[str | None]:
        """Return the processes of a host that have printed something, in any attempt; None is the toolkit itself."""
        found = self.host_dir(host).glob("logs/attempt-*/*.times")
        return {process_of(path.name.removesuffix(".times")) for path in found}

    def log_file(self, host: str, process: str | None, attempt: int = 0) -> Path:
        """Return the log file of one process (None: the toolkit itself): ``rank-3.log``, ``toolkit.log``, ``ps.log``.

        The file :func:`times_file` next to it has the time of each piece.
        """
        return self.log_dir(host, attempt) / f"{log_stem(process)}.log"

    # --- request, options, status ---

    def write_request(self, request: dict[str, Any]) -> None:
        """Write the CreateTrainingJob request."""
        self.write_json(self.request_file, request)

    def read_request(self) -> dict[str, Any]:
        """Read the CreateTrainingJob request; empty for a record that was abandoned before it had one."""
        return self.read_json(self.request_file) or {}

    def write_options(self, options: dict[str, Any]) -> None:
        """Write the RunOptions' JSON form."""
        self.write_json(self.options_file, options)

    def read_options(self) -> dict[str, Any]:
        """Read the RunOptions' JSON form; empty for a record that was abandoned before it had one."""
        return self.read_json(self.options_file) or {}

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status; readers see either the old one or the new one, complete.

        Raises:
            RecordError: the status cannot be written, not even with the reserved space.
        """
        self.write_json(self.status_file, status)

    def stored_status(self) -> dict[str, Any] | None:
        """Read the last written status, or None; for users, call :meth:`read_status` instead.

        Raises:
            RecordError: a newer fleetfit wrote it in a form that this one cannot read.
        """
        stored: dict[str, Any] | None = self.read_json(self.status_file)
        version = (stored or {}).get(statuses.OWN, {}).get("record_version", statuses.RECORD_VERSION)
        if isinstance(version, int) and version > statuses.RECORD_VERSION:
            raise RecordError(
                f"training job {self.name!r} was written by a newer fleetfit: its record version is {version}, and "
                f"this fleetfit reads up to {statuses.RECORD_VERSION}. Upgrade fleetfit to read it. The record is in "
                f"{self.path}."
            )
        return stored

    def read_status(self) -> dict[str, Any]:
        """Read the status, in DescribeTrainingJob's shape; a job whose supervisor was lost reads as Failed.

        Raises:
            JobNotFoundError: the record has been removed.
            RecordError: see :meth:`stored_status`.
        """
        stored = self.stored_status()
        if stored is not None and statuses.is_terminal(stored):
            return stored
        if self.is_supervised() or (stored is not None and self.queued_file.exists()):
            return stored or statuses.new_status({"TrainingJobName": self.name}, self.last_sign())
        if not self.path.is_dir():
            raise JobNotFoundError(f"the record of training job {self.name!r} is gone: {self.path}.")
        stored = self.stored_status()  # again: the supervisor may have finished since the first read
        if stored is not None and statuses.is_terminal(stored):
            return stored
        if stored is not None and statuses.lives_elsewhere(stored):
            return statuses.unfollowed(stored)
        when = self.last_sign()
        stored = stored or statuses.new_status({"TrainingJobName": self.name}, when)
        return statuses.lost(stored, when, tail(self.supervisor_log))

    def last_sign(self) -> float:
        """Return when the record was last written, in seconds since the epoch."""
        times = [0.0]
        for path in (self.lock_file, self.status_file, self.events_file, self.supervisor_log):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    # --- events ---

    def append_event(self, event: Event) -> None:
        """Append one event; see :meth:`append_events`."""
        self.append_events((event,))

    def append_events(self, events: Iterable[Event]) -> None:
        """Append events, one line each, in one write.

        Raises:
            RecordError: the events cannot be written.
        """
        lines = b"".join(json.dumps(vars(event), separators=(",", ":")).encode() + b"\n" for event in events)
        if not lines:
            return
        if self._torn:
            lines = b"\n" + lines
        with explained(self.events_file, "write"):
            if self._events_fd is None:
                self._events_fd = open_private(self.events_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._torn = True  # until everything is written; an empty line does no harm
            view = memoryview(lines)
            while view:
                view = view[os.write(self._events_fd, view) :]
            self._torn = False

    def events(self, *kinds: str) -> Iterator[Event]:
        """Yield the recorded events in the order of their arrival, without incomplete lines.

        Args:
            kinds: Only events of these kinds; default: all.
        """
        marks = [json.dumps(kind).encode() for kind in kinds] or [b""]
        try:
            file = self.events_file.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                if not any(mark in line for mark in marks):  # avoids parsing the others
                    continue
                try:
                    event = Event.from_dict(json.loads(line))
                except (ValueError, TypeError):
                    continue
                if not kinds or event.kind in kinds:
                    yield event

    # --- JSON files ---

    def write_json(self, path: Path, value: Any) -> None:
        """Replace a JSON file of the record atomically; use the reserved space if the disk is full.

        Raises:
            RecordError: the file cannot be written.
        """
        replace_json(path, value, self.path / ".reserve")

    def read_json(self, path: Path) -> Any:
        """Read a JSON file of the record; None if the file does not exist.

        Raises:
            RecordError: the file cannot be read, or is damaged.
        """
        try:
            with explained(path, "read"):
                return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RecordError(f"{path} is damaged: {error}. Remove the job's folder if you do not need it.") from error


def _taken(path: Path) -> JobExistsError:
    return JobExistsError(
        f"a training job named {path.name!r} exists already: {path}. Choose another job_name, or leave job_name out "
        "to get a new name."
    )


def jobs_folder(home: str | Path | None = None) -> Path:
    """Return the folder of all records, ``<home>/jobs``.

    Args:
        home: Default: ``$FLEETFIT_HOME``, or ``~/.fleetfit``.
    """
    chosen = home if home is not None else os.environ.get(HOME_VARIABLE) or "~/.fleetfit"
    return Path(os.path.abspath(os.path.expanduser(chosen))) / "jobs"


def is_job_name(name: str) -> bool:
    """Return whether SageMaker would accept a job name; only such a name is ever used as a path."""
    return _NAME.fullmatch(name) is not None


def job_names(home: str | Path | None = None) -> list[str]:
    """Return the names of all jobs on record, sorted."""
    return sorted(name for name in _subfolders(jobs_folder(home)) if _NAME.fullmatch(name))


def _subfolders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
