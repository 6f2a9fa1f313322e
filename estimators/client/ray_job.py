"""Run a training job inside a Ray job, and report on it: the program that ``RunOptions(dispatcher="ray")`` starts.

The machine that calls ``fit()`` submits this program to a Ray cluster as a Ray job, with one of three commands:

    … run                             start the training job whose files are in the working directory, and wait
    … follow JOB HAVE                 print the changes of the job's record; HAVE encodes what the submitter's copy has
    … ask JOB MESSAGE                 pass an encoded request to the job's supervisor, and print the response

All commands accept ``--home FOLDER``.

Ray gives such a program no standard input, and stores its output in a file, which the submitter reads over HTTP.
Because this file only grows, ``follow`` prints for one hour at most. Then it prints the message ``again``, and the
submitter starts a new ``follow``. When ``follow`` is stopped, it empties the file.

If ``run`` ends, the training job ends, and vice versa. Ray stops a Ray job by sending a signal to all descendants of
the Ray job's process. The training job's supervisor is not a descendant of ``run``. Therefore Ray's signal does not
reach the supervisor, and the supervisor can end the scripts in the right order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from container.contract.messages import Message, decode, encode
from estimators.backends.dispatchers.base import LIMIT, PARCEL, unpacked
from estimators.client import dispatching, ipc_client
from estimators.client.ipc_client import Tie
from estimators.client.training_job import TrainingJob
from estimators.job.errors import FleetfitError, TrainingJobError
from estimators.records.private_files import HOME_VARIABLE
from estimators.records.record import JobRecord

#: The environment variable in which Ray passes the job's configuration to the job's program and its child processes.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
#: Maximum time for which `follow` reports changes, and maximum time for which `follow` then waits until Ray stops this
#: process, in seconds.
_FOLLOWS_S, _READ_S = 3600.0, 60.0
#: Maximum time to wait for the supervisor of a job that has ended, and the interval between checks, in seconds.
_LINGERS_S, _LOOK_S = 60.0, 0.05


def main(argv: list[str] | None = None) -> int:
    """Run the command ``run``, ``follow`` or ``ask``, and return the exit code."""
    parser = argparse.ArgumentParser(prog="estimators.client.ray_job", description=__doc__)
    parser.add_argument("command", choices=("run", "follow", "ask"))
    parser.add_argument("job", nargs="?", default="")
    parser.add_argument("message", nargs="?", default="")
    parser.add_argument("--home", help=f"use this folder instead of ${HOME_VARIABLE}")
    arguments = parser.parse_args(argv)
    if arguments.home is not None:
        os.environ[HOME_VARIABLE] = os.path.expanduser(arguments.home)
    speaker = dispatching.Speaker()
    if arguments.command == "run":
        return run(Path(PARCEL), speaker)
    message = unpacked(arguments.message)
    if arguments.command == "ask":
        speaker.say(dispatching.ask(arguments.job, message))
        return 0
    return follow(arguments.job, message, speaker)


# --- the training job ---


def run(parcel: Path, speaker: dispatching.Speaker) -> int:
    """Start the training job, report whether the job was accepted, and print the job's logs until the job has ended.

    Args:
        parcel: The file with the training job.
        speaker: The writer for the message that the job was accepted or refused.

    Returns:
        The exit code: 0 if the job has completed, or 1 otherwise.
    """
    _keep_the_working_directory_here()
    ours, theirs = socket.socketpair()
    answer = _taken(parcel, theirs)
    theirs.close()
    speaker.say(answer)
    if answer["op"] != "done":
        return 1
    job = TrainingJob(JobRecord.open(answer["job"]), tie=Tie(ours))
    signal.signal(signal.SIGTERM, lambda number, frame: threading.Thread(target=_stop, args=(job,)).start())
    try:
        job.wait(logs=True)
    except TrainingJobError as error:
        print(error, file=sys.stderr)
    until = time.monotonic() + _LINGERS_S
    # Wait for the supervisor, because its code is in the working directory of this Ray job, which Ray may remove at the
    # end of this job.
    while job.record.is_supervised() and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return 0 if job.status == "Completed" else 1


def _keep_the_working_directory_here() -> None:
    """Remove the working directory from the Ray configuration that the processes of the hosts inherit.

    Otherwise Ray would copy the working directory, which contains the job's data, to every host.
    """
    try:
        config = json.loads(os.environ[_JOB_CONFIG])
    except (KeyError, ValueError):
        return
    for environment in (config, config.get("runtime_env") or {}):
        environment.pop("working_dir", None)
    os.environ[_JOB_CONFIG] = json.dumps(config)


def _taken(parcel: Path, theirs: socket.socket) -> Message:
    """Start the training job in a forked process, which then exits. Return the response for the submitter.

    The supervisor is a child of the forked process. When the forked process has exited, the supervisor is no longer a
    descendant of this process.

    Args:
        parcel: The file with the training job. The file is removed.
        theirs: The supervisor's end of the connection to this process.
    """
    read, write = os.pipe()
    pid = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.write(write, encode(_take(parcel, (theirs, pid)), LIMIT))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        line = pipe.read()
    os.wait()
    return decode(line) if line else {"op": "refused", "error": "the process that was starting the job was killed."}


def _take(parcel: Path, tied: tuple[socket.socket, int]) -> Message:
    try:
        with parcel.open("rb") as source:
            parcel.unlink()  # the parcel may contain secrets
            record = dispatching.take(source, tied)
    except Exception as error:  # noqa: BLE001 - otherwise the submitter would report that this process was killed
        return dispatching.refusal(error)
    return {"op": "done", "job": record.name}


def _stop(job: TrainingJob) -> None:
    with contextlib.suppress(FleetfitError):  # the job has ended or is ending
        ipc_client.request(job.record, ipc_client.stop_message(None, "Ray was asked to stop the job"))


# --- reporting progress ---


def follow(name: str, have: Mapping[str, Any], speaker: dispatching.Speaker) -> int:
    """Print the changes of a job's record until the job has ended or an hour has passed.

    Then wait until Ray stops this process, at most one minute.
    """

    def forget(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(sys.stdout.fileno(), 0)  # the file contains models and logs, and Ray does not remove it
        os._exit(0)

    signal.signal(signal.SIGTERM, forget)
    until = time.monotonic() + _FOLLOWS_S
    dispatching.tell(name, have, speaker, _FOLLOWS_S)
    if time.monotonic() >= until:
        speaker.say({"op": "again"})
    time.sleep(_READ_S)
    forget(0, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
