"""Accept jobs on a dispatcher, and report their progress: the program that a sender starts on the dispatcher.

A sender is a machine on which a user calls ``fit()`` with ``RunOptions(dispatcher=…)``. The dispatcher is the machine
that runs the job's supervisor. The sender starts this program on the dispatcher with one of two commands:

    … submit [--home FOLDER]          read a parcel (a job): a header, which is a message, and a tar archive of files
    … follow JOB [--home FOLDER]      exchange messages until the job has ended

The program exchanges messages (:mod:`container.contract.messages`) with the sender over standard input and output.

``submit`` starts the job, and responds with the message ``done`` or ``refused``.

``follow`` keeps the sender's copy of the job's record up to date. It first reads the message ``have``, in which the
sender describes its copy. Then it sends all changes of the record (:mod:`estimators.records.replication`). When the job
has ended, it sends ``end``. It also passes the sender's requests (``ask``) to the job's supervisor. ``follow`` exits
when its input is closed, or when the sender has sent no message for 20 seconds. The job then continues.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from container.contract import rules
from container.contract.messages import Decoder, Message, MessageError, decode, encode
from container.system import archive, files
from estimators import backends
from estimators.backends.dispatchers.base import LIMIT
from estimators.backends.dispatchers.parcels import relocated
from estimators.client import checks, ipc_client, launch
from estimators.job import fleets
from estimators.job.errors import ConfigurationError, FleetfitError, JobExistsError, JobNotFoundError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.private_files import HOME_VARIABLE
from estimators.records.record import JobRecord, jobs_folder
from estimators.records.replication import Changes

#: Interval at which the record is checked, in seconds.
_LOOK_S = 0.1
#: Interval between the heartbeats of the program, and time without a message of the sender after which the program
#: exits, in seconds.
_BEAT_S, _SILENCE_S = 5.0, 20.0


def main(argv: list[str] | None = None) -> int:
    """Accept a job, or report a job's progress. Return the program's exit code."""
    parser = argparse.ArgumentParser(prog="estimators.client.dispatching", description=__doc__)
    parser.add_argument("command", choices=("submit", "follow"))
    parser.add_argument("job", nargs="?")
    parser.add_argument("--home", help=f"use this folder instead of ${HOME_VARIABLE}")
    arguments = parser.parse_args(argv)
    if arguments.home is not None:
        os.environ[HOME_VARIABLE] = os.path.expanduser(arguments.home)
    if arguments.command == "submit":
        return submit(sys.stdin.buffer, Speaker())
    return follow(str(arguments.job), sys.stdin.fileno(), Speaker())


class Speaker:
    """A writer that sends messages to the sender of a job. Several threads can write at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, message: Mapping[str, Any]) -> None:
        """Write a message to the sender.

        Raises:
            OSError: the sender has closed the connection.
        """
        data = encode(message, LIMIT)
        with self._lock:
            files.write_all(sys.stdout.fileno(), data)


# --- taking a job ---


def submit(source: IO[bytes], speaker: Speaker) -> int:
    """Read a job from a parcel, and start the job's supervisor. Then send the response ``done`` or ``refused``.

    The supervisor runs independently of this process.

    Args:
        source: The stream from which the parcel is read.
        speaker: The writer for the response.

    Returns:
        The exit code, which is always 0.
    """
    try:
        take(source)
    except Exception as error:  # noqa: BLE001 - otherwise the sender would report that the job does not exist
        speaker.say(refusal(error))
    else:
        speaker.say({"op": "done"})
    return 0


def refusal(error: Exception) -> Message:
    """Return the response ``refused``, which tells the sender why the job in a parcel cannot be started.

    Args:
        error: The exception that the start has raised.
    """
    if isinstance(error, FleetfitError):
        return {"op": "refused", "error": str(error)}
    if isinstance(error, OSError):
        return {"op": "refused", "error": f"{error.filename or 'the job'}: {error.strerror or error}"}
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}, Python {sys.version.split()[0]}"
    return {"op": "refused", "error": f"fleetfit failed on the dispatcher: {type(error).__name__}: {error} ({where})"}


def take(source: IO[bytes], tied: tuple[socket.socket, int] | None = None) -> JobRecord:
    """Read a parcel, create the record that the parcel describes, and start the job's supervisor. Return the record.

    Args:
        source: The stream from which the parcel is read.
        tied: The supervisor's socket and the PID of the waiting process, as in :func:`estimators.client.launch.start`.
            None if no process waits for the job.

    Raises:
        FleetfitError: the job cannot run here.
        OSError: the parcel cannot be stored.
    """
    try:
        header = decode(source.readline(LIMIT))
    except MessageError as error:
        raise ConfigurationError(f"the received data is not a job: {error}.") from None
    name, jobs = str(header["name"]), jobs_folder()
    request = relocated(header["request"], str(header["jobs"]), str(jobs))
    try:
        record = JobRecord.stage(name)
    except JobExistsError:
        known = JobRecord.open(name)
        if (known.stored_status() or {}).get("CreationTime") != header["created"] or known.read_request() != request:
            raise
        return known  # the sender has sent the same job again, because the response was lost
    try:
        try:
            archive.extract_stream(source, record.path, "the job")
        except archive.ArchiveError as error:
            raise ConfigurationError(str(error)) from None
        spec = TrainingJobSpec.from_request(request)
        options = _options_of(header)
        record.write_request(request)
        record.write_options(rules.to_dict(options))
        record.write_status(
            statuses.new_status(request, float(header.get("created") or time.time()), warnings=options.warnings)
        )
        record.publish(name)
        _check(spec, options)
        launch.hand_over(record, spec, options)
        launch.start(record, _environment(header), tied)
    except BaseException:
        record.discard()
        raise
    return record


def _options_of(header: Message) -> JobOptions:
    options = dict(header["options"])
    if options.get("python") == header["python"]:  # replace the sender's own interpreter by ours
        options["python"] = sys.executable
    return JobOptions.from_dict(options)


def _environment(header: Message) -> dict[str, str]:
    """Return the supervisor's environment.

    PYTHONPATH contains the folder of this package, because the package may not be installed on this machine.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {str(name): str(value) for name, value in dict(header.get("environment") or {}).items()}
    return {**os.environ, **given, "PYTHONPATH": os.pathsep.join(paths)}


def _check(spec: TrainingJobSpec, options: JobOptions) -> None:
    """Run the checks that ``fit()`` on this machine would run for the job.

    Raises:
        ConfigurationError: a check failed.
        UnsupportedError: the job's settings are not supported here.
    """
    backend = backends.load(options.backend)
    checks.check_elastic(spec)
    checks.check_local(spec)
    checks.check_faults(spec, options)
    backend.check(spec, options)
    if fleets.capabilities(spec.instance_type).simulated:
        return
    checks.check_data(spec, options.python)


# --- reporting progress ---


class _Listener(threading.Thread):
    """A thread that reads messages from the sender of a job. When the connection is lost, the thread ends this process.

    Args:
        name: The job's name.
        descriptor: The file descriptor to read from.
        speaker: The writer for the responses to requests.
    """

    def __init__(self, name: str, descriptor: int, speaker: Speaker) -> None:
        super().__init__(daemon=True)
        self._name = name
        self._descriptor = descriptor
        self._speaker = speaker
        self._decoder = Decoder(LIMIT)
        self._heard = time.monotonic()
        self.have: Message = {}
        self.begun = threading.Event()

    def run(self) -> None:
        """Read messages until the connection closes or is silent for 20 seconds. Then exit the process."""
        try:
            while self._listen():
                pass
        except (OSError, MessageError):
            pass
        os._exit(0)  # the main thread may be blocked in a write, because the sender has stopped reading

    def _listen(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], 1.0)
        if not ready:
            return time.monotonic() - self._heard < _SILENCE_S
        data = os.read(self._descriptor, 1 << 16)
        self._heard = time.monotonic()
        self._decoder.feed(data)
        while (message := self._decoder.take()) is not None:
            if message["op"] == "have":
                self.have = message
                self.begun.set()
            elif message["op"] == "ask":
                threading.Thread(target=self._ask, args=(message,), daemon=True).start()
        return bool(data)

    def _ask(self, message: Message) -> None:
        answer = ask(self._name, message["message"])
        try:
            self._speaker.say({**answer, "id": message.get("id")})
        except OSError:
            os._exit(0)


def ask(name: str, message: Message) -> Message:
    """Send a request to a job's supervisor, and return the supervisor's response, or an error as a response."""
    try:
        answer = ipc_client.request(JobRecord.open(name), message)
    except FleetfitError as error:
        answer = {"ok": False, "error": str(error)}
    return {**answer, "op": "answer"}


def follow(name: str, descriptor: int, speaker: Speaker) -> int:
    """Send the changes of a job's record to the job's sender until the job has ended.

    Args:
        name: The job's name.
        descriptor: The file descriptor from which the sender's messages are read.
        speaker: The writer for messages.

    Returns:
        The exit code: 0 if the job has ended, or 1 if the sender has closed the connection.
    """
    listener = _Listener(name, descriptor, speaker)
    listener.start()
    listener.begun.wait()
    try:
        tell(name, listener.have, speaker)
    except OSError:
        return 1  # the sender has closed the connection
    return 0


def tell(name: str, have: Mapping[str, Any], speaker: Speaker, seconds: float = math.inf) -> None:
    """Send the changes of a job's record to the job's sender until the job has ended or the time limit is reached.

    Args:
        name: The job's name.
        have: The description of the sender's copy of the record, from the message ``have``.
        speaker: The writer for messages.
        seconds: The time limit, in seconds.

    Raises:
        OSError: the sender has closed the connection.
    """
    until = time.monotonic() + seconds
    try:
        record = JobRecord.open(name)
    except JobNotFoundError as error:
        speaker.say({"op": "missing", "error": str(error)})
        return
    speaker.say(
        {
            "op": "job",
            "request": record.read_request(),
            "options": record.read_options(),
            "jobs": str(record.path.parent),
        }
    )
    changes = Changes(record, have)
    said = time.monotonic()
    while time.monotonic() < until:
        for message in changes.read():
            speaker.say(message)
            said = time.monotonic()
        if changes.complete:
            speaker.say({"op": "end"})
            return
        if time.monotonic() - said > _BEAT_S:
            speaker.say({"op": "beat"})
            said = time.monotonic()
        time.sleep(_LOOK_S)
