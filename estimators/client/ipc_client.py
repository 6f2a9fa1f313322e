"""Talking to a job's supervisor: over its socket from any process, over the tie from the process that waits for it.

On both, a message is a JSON object on a line: ``{"op": "stop", "grace": seconds or null, "reason": text}`` or
``{"op": "ping"}``. On the socket each is answered by ``{"ok": true}`` or ``{"ok": false, "error": text}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estimators.job.errors import JobUnreachableError
from estimators.records.record import JobRecord

#: Answers are a line; more than this is not one.
_REPLY_LIMIT = 1 << 20
_RETRY_SECONDS = 0.02


def stop_message(grace: float | None, reason: str) -> dict[str, Any]:
    """Ask to end the job.

    Args:
        grace: Seconds that the script has to save; None for the job's own ``stop_grace``.
        reason: Who asked, for the status message.
    """
    return {"op": "stop", "grace": grace, "reason": reason}


def request(record: JobRecord, message: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Send a message to the supervisor of a job and return its answer.

    Waits for a supervisor that is just starting.

    Args:
        record: The job's record.
        message: What to ask.
        timeout: Seconds for everything.

    Raises:
        JobUnreachableError: the job has no supervisor any more, or it does not answer in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                with _short_path(record.control_socket) as path:
                    connection.connect(path)
                connection.sendall(_line(message))
                return _reply(connection, deadline)
        except (FileNotFoundError, ConnectionError) as error:  # not there yet, or not any more
            if record.queued_file.exists():
                raise JobUnreachableError(
                    f"training job {record.name!r} waits in the queue of an endpoint and has no supervisor yet: only "
                    "the endpoint can stop it (StopTrainingJob); `fleetfit serve` starts one."
                ) from error
            if not record.is_supervised():
                raise JobUnreachableError(
                    f"training job {record.name!r} has no supervisor (any more): its status is "
                    f"{record.read_status()['TrainingJobStatus']}."
                ) from error
            cause: Exception = error
        except (TimeoutError, BlockingIOError) as error:
            cause = error
        if time.monotonic() >= deadline:
            raise JobUnreachableError(
                f"the supervisor of training job {record.name!r} did not answer within {timeout:g} s; its log is "
                f"{record.supervisor_log}."
            ) from cause
        time.sleep(_RETRY_SECONDS)


class Tie:
    """The caller's end of the connection that ties an attached job to it.

    The supervisor sends a byte when there is something new to read and closes its end when it is done. When this end
    is closed, for whatever reason, the supervisor ends the job at once.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.ended = False

    def fileno(self) -> int:
        """The descriptor to wait for; -1 once closed."""
        return self._connection.fileno()

    def drain(self) -> bool:
        """Take the bytes that have arrived; returns whether there were any. Sets :attr:`ended` at end-of-file."""
        woken = False
        while not self.ended:
            try:
                data = self._connection.recv(4096)
            except BlockingIOError:
                break
            except OSError:  # reset, or closed here
                data = b""
            if data:
                woken = True
            else:
                self.ended = True
        return woken

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; returns False when the supervisor is gone or does not read."""
        try:
            line = _line(message)
            return self._connection.send(line, socket.MSG_NOSIGNAL) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Cut the tie: a job that still runs is ended at once."""
        self._connection.close()
        self.ended = True


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _reply(connection: socket.socket, deadline: float) -> dict[str, Any]:
    buffer = bytearray()
    while b"\n" not in buffer:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connection.settimeout(remaining)
        data = connection.recv(65536)
        if not data or len(buffer) > _REPLY_LIMIT:
            raise ConnectionResetError("the supervisor closed the connection without an answer")
        buffer += data
    reply = json.loads(buffer[: buffer.index(b"\n")])
    if not isinstance(reply, dict):
        raise ConnectionResetError(f"the supervisor answered {reply!r}")
    return reply


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A path of a socket that fits sun_path's 108 bytes, however long the folder's is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
