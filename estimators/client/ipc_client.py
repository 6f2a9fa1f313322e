"""Talk to a job's supervisor: over its socket from any process, over the tie from the process that waits for it.

Requests are messages (:mod:`container.contract.messages`): ``stop`` with ``grace`` (seconds or null) and ``reason``, or
``ping``; an elastic job takes more. On the socket each is answered by ``ok``: true, or false and an ``error``.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from container.contract.messages import MessageError, encode
from container.system.connection import BlockingConnection
from container.system.sockets import short_path
from estimators.job.errors import JobUnreachableError
from estimators.records.record import JobRecord

_RETRY_SECONDS = 0.02


#: How long an answer may take of a supervisor on this machine, and of one at a dispatcher, which may have to start a
#: program there for the question.
_NEAR_SECONDS, _FAR_SECONDS = 5.0, 60.0


def stop_message(grace: float | None, reason: str) -> dict[str, Any]:
    """Ask to end the job.

    Args:
        grace: Seconds that the script has to save; None for the job's own ``stop_grace``.
        reason: Who asked, for the status message.
    """
    return {"op": "stop", "grace": grace, "reason": reason}


def request(record: JobRecord, message: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
    """Send a message to the supervisor of a job and return its answer.

    Waits for a supervisor that is just starting.

    Args:
        record: The job's record.
        message: What to ask.
        timeout: Seconds for everything; default: 5, or 60 where the question goes on to a dispatcher.

    Raises:
        JobUnreachableError: the job has no supervisor any more, or it does not answer in time.
    """
    if timeout is None:
        timeout = _FAR_SECONDS if record.read_options().get("dispatcher") is not None else _NEAR_SECONDS
    deadline = time.monotonic() + timeout
    while True:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            with BlockingConnection(sock) as connection:
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                with short_path(record.control_socket) as path:
                    sock.connect(path)
                connection.send(message)
                if (answer := connection.receive(deadline - time.monotonic())) is None:
                    raise ConnectionResetError("the supervisor closed the connection without an answer")
                return answer
        except (FileNotFoundError, ConnectionError, MessageError) as error:  # not there yet, or not any more
            if record.queued_file.exists():
                raise JobUnreachableError(
                    f"training job {record.name!r} waits in the queue of an endpoint and has no supervisor yet. Only "
                    "the endpoint can stop the job (StopTrainingJob); `fleetfit serve` starts an endpoint."
                ) from error
            if not record.is_supervised():
                raise JobUnreachableError(
                    f"no supervisor process is running for training job {record.name!r}: its status is "
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

    The supervisor sends a message when there is something new to read and closes its end when it is done. When this end
    is closed, for whatever reason, the supervisor ends the job at once.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once closed."""
        return self._connection.fileno()

    def drain(self) -> bool:
        """Take what has arrived, which says no more than that; returns whether there was anything.

        Sets :attr:`ended` at end-of-file.
        """
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
            line = encode(message)
            return self._connection.send(line, socket.MSG_NOSIGNAL) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Cut the tie: a job that still runs is ended at once."""
        self._connection.close()
        self.ended = True
