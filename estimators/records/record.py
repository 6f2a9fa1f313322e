"""Read and write a job's record, the folder ``$FLEETFIT_HOME/jobs/<name>/`` with all files about the job.

The files contain the job's request, status, logs and events, for example. The supervisor, which runs a job, is a
separate process. Each record has a lock file, which shows whether the job has a supervisor.

The module guarantees:

* If several processes try to create a job with the same name, only one of them succeeds.
* The lock is held without a gap from the moment at which a record becomes visible until the supervisor exits. For this
  purpose, the creator passes its locked file descriptor to the supervisor.
* If nobody holds the lock of a record and its status is not final, the supervisor has been killed. Readers then get the
  status Failed with the reason "supervisor lost".
* Once the supervisor runs, only the supervisor writes. Readers in any process see complete files.
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
from container.system import files, locks
from container.system.removing import remove_tree
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError, RecordError
from estimators.records import status as statuses
from estimators.records.log_files import log_stem, process_of
from estimators.records.private_files import HOME_VARIABLE, explained, open_private, replace_json, reserve, tail

#: The name of a file in the record of an elastic job. It lists the hosts that the user's function ``discovery=`` has
#: returned, one per line. The supervisor reads this file.
DISCOVERED = "discovered"
#: SageMaker's pattern for TrainingJobName.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class _PathOf:
    """A Python descriptor that returns a path below a record's folder, such as ``record.request_file``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, record: JobRecord, owner: type[JobRecord]) -> Path:
        return record.path / self._name


class JobRecord:
    """The record of one job.

    Use :meth:`create` for a new job, and :meth:`open` for an existing job. The supervisor uses :meth:`adopt`.

    Attributes:
        path: The record's folder.
        lock_fd: The descriptor of the lock file if this process holds the lock, as the creator and the supervisor do.
            None in processes that only read the record.
    """

    def __init__(self, path: Path, *, lock_fd: int | None = None) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self._torn = False
        self._events_fd: int | None = None

    def __repr__(self) -> str:
        return f"JobRecord({str(self.path)!r})"

    # --- creating and opening ---

    @classmethod
    def create(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Create a record that other processes can see immediately, and acquire its lock.

        See :meth:`stage` for the arguments and errors.
        """
        record = cls.stage(name, home)
        try:
            record.publish(name)
        except BaseException:
            record.discard()
            raise
        return record

    @classmethod
    def stage(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Create a record that other processes do not see until :meth:`publish`, and acquire its lock.

        Write the files of the new job before you call :meth:`publish`.

        If this process is killed before :meth:`publish`, the name stays unused, and ``fleetfit clean`` removes the
        folder.

        Args:
            name: The job's name.
            home: The folder to use instead of ``$FLEETFIT_HOME``.

        Raises:
            ConfigurationError: SageMaker would not accept the name.
            JobExistsError: the name is already used.
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
        """Move a record that :meth:`stage` has created to its final path, where other processes see it.

        This process must hold the lock.

        The move is atomic. If several processes publish a record under the same name, only one of them succeeds.

        Raises:
            JobExistsError: the name is already used. The record has not been moved.
            RecordError: the folder cannot be written.
        """
        path = self.path.with_name(name)
        publish(self.path, path, _taken(path))
        self.path = path

    @classmethod
    def open(cls, name: str, home: str | Path | None = None) -> JobRecord:
        """Open the record of a job.

        Raises:
            ConfigurationError: the name is not a string.
            JobNotFoundError: the name has no record. The message suggests the most similar name.
        """
        if not isinstance(name, str):
            raise ConfigurationError(f"the name of a training job must be a string; got {shown(name)}.")
        path = jobs_folder(home) / name
        if not _NAME.fullmatch(name) or not path.is_dir():
            guess = nearest(name, job_names(home))
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise JobNotFoundError(f"there is no training job {name!r} under {jobs_folder(home)}.{hint}")
        return cls(path)

    @classmethod
    def adopt(cls, path: str | Path, lock_fd: int) -> JobRecord:
        """Open a record in the supervisor, which inherits the locked descriptor from the record's creator.

        Child processes of the supervisor do not inherit the descriptor.
        """
        os.set_inheritable(lock_fd, False)
        return cls(Path(path), lock_fd=lock_fd)

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """Return the folder that contains ``jobs/`` with this record, normally ``$FLEETFIT_HOME``."""
        return self.path.parent.parent

    # --- the lock ---

    def lock(self) -> bool:
        """Acquire the lock of a record that has no supervisor.

        Returns:
            Whether the lock was acquired. False if another process holds the lock.

        Raises:
            RecordError: the record has been removed or cannot be written.
        """
        with explained(self.lock_file, "open"):
            descriptor = open_private(self.lock_file, os.O_RDWR | os.O_CREAT)
        if not locks.take_from_askers(descriptor):
            os.close(descriptor)
            return False
        self.lock_fd = descriptor
        return True

    def release(self) -> None:
        """Close this process's descriptors of the record.

        The lock is free when no process has an open copy of the descriptor.
        """
        for descriptor in (self.lock_fd, self._events_fd):
            if descriptor is not None:
                os.close(descriptor)
        self.lock_fd = self._events_fd = None

    def is_supervised(self) -> bool:
        """Return whether a process holds the lock: the supervisor, or the creator before it starts the supervisor."""
        if self.lock_fd is not None:
            return True
        return locks.is_held(self.lock_file)

    def discard(self) -> None:
        """Remove the record of a job that was never started. A new job can then use the name."""
        remove_tree(self.path, ignore_errors=True)
        self.release()

    # --- files and folders ---

    #: The lock file. It is locked while the job has a supervisor.
    lock_file = _PathOf("lock")
    #: The CreateTrainingJob request.
    request_file = _PathOf("request.json")
    #: The job's run options.
    options_file = _PathOf("options.json")
    #: The job's last status.
    status_file = _PathOf("status.json")
    #: The events, with one JSON object per line.
    events_file = _PathOf("events.jsonl")
    #: The provenance of the job.
    provenance_file = _PathOf("provenance.json")
    #: The facts that the caller found for the supervisor (see :meth:`estimators.backends.base.BackendQueries.found`).
    found_file = _PathOf("found.json")
    #: What an endpoint (``fleetfit serve``) stores about the job: the client's original request, tags, and later
    #: changes.
    asked_file = _PathOf("service.json")
    #: The snapshot of the user's code.
    source_dir = _PathOf("source")
    #: The supervisor's own output. The file contains text only if the supervisor has had a problem.
    supervisor_log = _PathOf("supervisor.log")
    #: The supervisor's socket. Connect with :mod:`estimators.client.ipc_client`, because the path may be too long for a
    #: direct connection.
    control_socket = _PathOf("control.sock")
    #: This file exists while the job waits in an endpoint's queue. Such a job has no supervisor, but is not lost.
    queued_file = _PathOf("queued")
    #: The folder that contains one folder for each host, with the host's ``/opt/ml`` tree and logs.
    hosts_dir = _PathOf("hosts")
    #: The folder for ``model.tar.gz`` and ``output.tar.gz``.
    output_dir = _PathOf("output")
    #: Local copies of outputs that a function has returned, or that are on S3.
    copies_dir = _PathOf("returned")
    #: The checkpoints of a job that specifies no other location for checkpoints.
    checkpoints_dir = _PathOf("checkpoints")

    @property
    def hosts(self) -> list[str]:
        """Return the names of the hosts that have a folder. ``algo-2`` is sorted before ``algo-10``."""
        return sorted(_subfolders(self.hosts_dir), key=natural_key)

    def host_dir(self, host: str) -> Path:
        """Return one host's folder.

        Raises:
            ValueError: the name is not valid for a host. Such a name could refer to a folder outside of the record.
        """
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host's name.")
        return self.hosts_dir / host

    def tree(self, host: str) -> MLTree:
        """Return the ``/opt/ml`` tree of one host."""
        return MLTree(self.host_dir(host) / "ml")

    def log_dir(self, host: str, attempt: int = 0) -> Path:
        """Return the folder that contains the logs of a host's processes in one attempt."""
        return self.host_dir(host) / "logs" / f"attempt-{attempt}"

    def processes(self, host: str) -> set[str | None]:
        """Return the names of the processes of a host that have printed output in any attempt.

        None stands for the toolkit, the program that starts the host's processes.
        """
        found = self.host_dir(host).glob("logs/attempt-*/*.times")
        return {process_of(path.name.removesuffix(".times")) for path in found}

    def log_file(self, host: str, process: str | None, attempt: int = 0) -> Path:
        """Return the path of one process's log, such as ``rank-3.log``, ``toolkit.log`` or ``ps.log``.

        The times of the output are in a second file next to the log (:func:`estimators.records.log_files.times_file`).

        Args:
            host: The host of the process.
            process: The name of the process. None for the toolkit itself.
            attempt: The number of the attempt, counted from 0.
        """
        return self.log_dir(host, attempt) / f"{log_stem(process)}.log"

    # --- request, options, status ---

    def write_request(self, request: dict[str, Any]) -> None:
        """Write the CreateTrainingJob request."""
        self.write_json(self.request_file, request)

    def read_request(self) -> dict[str, Any]:
        """Read the CreateTrainingJob request.

        Return an empty dict if the creator of the record was killed before it wrote the request.
        """
        return self.read_json(self.request_file) or {}

    def write_options(self, options: dict[str, Any]) -> None:
        """Write the job's run options as JSON."""
        self.write_json(self.options_file, options)

    def read_options(self) -> dict[str, Any]:
        """Read the job's run options as a dict.

        Return an empty dict if the creator of the record was killed before it wrote the options.
        """
        return self.read_json(self.options_file) or {}

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status atomically. Readers see either the old status or the new status.

        Raises:
            RecordError: the status cannot be written, even with the reserved space.
        """
        self.write_json(self.status_file, status)

    def stored_status(self) -> dict[str, Any] | None:
        """Read the status as it was last written. Return None if no status has been written.

        To show the status to users, call :meth:`read_status`, which also notices that the supervisor was killed.

        Raises:
            RecordError: a newer version of fleetfit wrote the status in a format that this version cannot read.
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
        """Read the status, which has the same members as the response of SageMaker's DescribeTrainingJob.

        If the job's supervisor was killed before the job ended, the status is Failed. A job on SageMaker or on a
        dispatcher continues in this case. Its status is then the last known status, with a warning.

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
        stored = self.stored_status()  # read again: the supervisor may have ended the job since the first read
        if stored is not None and statuses.is_terminal(stored):
            return stored
        if stored is not None and statuses.lives_elsewhere(stored):
            return statuses.unfollowed(stored)
        when = self.last_sign()
        stored = stored or statuses.new_status({"TrainingJobName": self.name}, when)
        return statuses.lost(stored, when, tail(self.supervisor_log))

    def last_sign(self) -> float:
        """Return the time of the last write to the lock file, the status, the events or the supervisor's log.

        The time is in seconds since the epoch. It is 0 if none of these files exists.
        """
        times = [0.0]
        for path in (self.lock_file, self.status_file, self.events_file, self.supervisor_log):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    # --- events ---

    def append_event(self, event: Event) -> None:
        """Append one event. See :meth:`append_events`."""
        self.append_events((event,))

    def append_events(self, events: Iterable[Event]) -> None:
        """Append events in one write. Each event becomes one line.

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
            self._torn = True  # if the write fails, the next write begins with a line break
            files.write_all(self._events_fd, lines)
            self._torn = False

    def events(self, *kinds: str) -> Iterator[Event]:
        """Yield the recorded events in the order of their arrival. Incomplete lines are omitted.

        Args:
            kinds: The kinds of events to yield. Without arguments, events of all kinds are yielded.
        """
        marks = [json.dumps(kind).encode() for kind in kinds] or [b""]
        try:
            file = self.events_file.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                if not any(mark in line for mark in marks):  # parsing is slow
                    continue
                try:
                    event = Event.from_dict(json.loads(line))
                except (ValueError, TypeError):
                    continue
                if not kinds or event.kind in kinds:
                    yield event

    # --- JSON files ---

    def write_json(self, path: Path, value: Any) -> None:
        """Replace a JSON file of the record atomically. Use the reserved space if the disk is full.

        Raises:
            RecordError: the file cannot be written.
        """
        replace_json(path, value, self.path / ".reserve")

    def read_json(self, path: Path) -> Any:
        """Read a JSON file of the record. Return None if the file does not exist.

        Raises:
            RecordError: the file cannot be read or is damaged.
        """
        try:
            with explained(path, "read"):
                return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RecordError(f"{path} is damaged: {error}. Remove the job's folder if you do not need it.") from error


def publish(staged: Path, path: Path, taken: Exception) -> None:
    """Move the folder of a new record to its final path. The move is atomic.

    Args:
        staged: The present path of the folder.
        path: The final path.
        taken: The error to raise if the final path already has a record.

    Raises:
        RecordError: the folder cannot be written.
        Exception: ``taken``, if the final path already has a record. The folder has not been moved.
    """
    with explained(path, "create"):
        try:
            os.rename(staged, path)  # fails if the path has a record, which is never empty
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise taken from None
            raise


def _taken(path: Path) -> JobExistsError:
    return JobExistsError(
        f"a training job named {path.name!r} exists already: {path}. Choose another job_name, or leave job_name out "
        "to get a new name."
    )


def jobs_folder(home: str | Path | None = None) -> Path:
    """Return the folder of all records, ``<home>/jobs``.

    Args:
        home: The parent folder. None for ``$FLEETFIT_HOME``, or ``~/.fleetfit`` if the variable is not set.
    """
    chosen = home if home is not None else os.environ.get(HOME_VARIABLE) or "~/.fleetfit"
    return Path(os.path.abspath(os.path.expanduser(chosen))) / "jobs"


def is_job_name(name: str) -> bool:
    """Return whether SageMaker would accept a job name. Check a name before you use it as a path."""
    return _NAME.fullmatch(name) is not None


def job_names(home: str | Path | None = None) -> list[str]:
    """Return the names of all jobs that have a record, sorted."""
    return sorted(name for name in _subfolders(jobs_folder(home)) if _NAME.fullmatch(name))


def _subfolders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
