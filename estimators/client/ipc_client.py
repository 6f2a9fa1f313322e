"""Send requests to a job's supervisor, the process that starts and watches the job.

Any process of the user can send a request over the supervisor's socket. The process that waits for the job in ``fit()``
can also use the connection that ties the job to this process (:class:`Tie`). Requests are messages
(:mod:`container.contract.messages`). The request ``stop`` has the members ``grace`` (seconds or null) and ``reason``.
The request ``ping`` has no members. Elastic jobs accept more requests.

The supervisor responds to requests over the socket. A response has the member ``ok``. If ``ok`` is false, the response
also has the member ``error``.
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


#: Timeouts for a response, in seconds: for a job on this machine, and for a job on a dispatcher. A program may have to
#: be started on the dispatcher first.
_NEAR_SECONDS, _FAR_SECONDS = 5.0, 60.0


def stop_message(grace: float | None, reason: str) -> dict[str, Any]:
    """Return the request ``stop``, which makes the supervisor stop the job.

    Args:
        grace: The time that the script has to save its state, in seconds. With None, the job's ``stop_grace`` applies.
        reason: The reason for the stop, which the job's status message will contain.
    """
    return {"op": "stop", "grace": grace, "reason": reason}


def request(record: JobRecord, message: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
    """Send a request to the supervisor of a job, and return the supervisor's response.

    If the supervisor is still starting, wait until it accepts requests.

    Args:
        record: The job's record.
        message: The request.
        timeout: The maximum total time, in seconds. The default is 60 s for a job on a dispatcher, and 5 s for any
            other job.

    Raises:
        JobUnreachableError: the job has no supervisor, or the supervisor does not respond in time.
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
        except (FileNotFoundError, ConnectionError, MessageError) as error:  # the supervisor is starting or has exited
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
    """The socket in the process that waits for a job. Its connection to the supervisor ties the job to this process.

    The supervisor sends data when the record has new content, and closes the connection when the job has ended. If this
    socket is closed for any reason, such as the exit of this process, the supervisor stops the job at once.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor to wait for with ``poll()``, or -1 after :meth:`close`."""
        return self._connection.fileno()

    def drain(self) -> None:
        """Read and discard all received data.

        The only purpose of the data is to wake this process. When the supervisor has closed the connection,
        :attr:`ended` becomes True.
        """
        while not self.ended:
            try:
                data = self._connection.recv(4096)
            except BlockingIOError:
                break
            except OSError:  # the connection was reset, or this process has closed it
                data = b""
            if not data:
                self.ended = True

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. Return whether the whole message was sent.

        The message cannot be sent if the supervisor has exited or does not read.
        """
        try:
            line = encode(message)
            return self._connection.send(line, socket.MSG_NOSIGNAL) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection. The supervisor then stops a running job at once."""
        self._connection.close()
        self.ended = True
