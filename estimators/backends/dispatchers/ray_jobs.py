"""Send requests to Ray's Jobs API over HTTP, for :class:`estimators.backends.dispatchers.ray.RayDispatcher`.

    python -I ray_jobs.py

This is a separate program, because Ray's client loads a hundred modules, starts threads and blocks. Requests and
answers are JSON lines. Each answer has the ``id`` of its request. If Ray refuses a request, the answer is ``refused``
with ``reason``. If Ray cannot be reached, the answer is ``unreached`` with ``reason``. The requests and their other
answers are:

* ``connect`` with ``address`` has no answer.
* ``submit`` submits a Ray job. The first answer is ``submitted``. An answer ``said`` follows for each ``message`` of
  the Ray job. A message is a printed line that is a JSON object with ``op``. If the Ray job ends, the last answer is
  ``over`` with ``reason``. If a Ray job with the same name and metadata exists already, no second one is submitted, and
  the messages of the existing one are reported.
* ``stop`` with ``job`` stops a Ray job. The answer is ``stopped``.
* ``look`` with ``job`` has the answer ``seen`` with ``runs``, which is true if the Ray job has not ended. If Ray has no
  such job, the answer is ``refused``.

The arguments of ``submit`` are:

* ``job``: The submission id of the Ray job.
* ``entrypoint``: The shell command that the Ray job runs.
* ``package``: The path of a zip file with the content of the working directory.
* ``runtime_env``, ``metadata``: The values for Ray's Jobs API.
* ``until``: The values of ``op`` in a message after which the Ray job's messages are not read any more.
* ``forget``: Whether to delete the Ray job from Ray after the last answer.
* ``alone``: A key of the metadata. Ray jobs whose metadata have the same value under this key are stopped first.
* ``beats``: Whether the Ray job prints continuously, so that silence means that the connection is lost.

When the program's standard input ends, the program stops the Ray jobs that print continuously.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":  # run as a separate program
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "ray"))
    import shortage  # type: ignore[import-not-found]
else:
    from estimators.backends.ray import shortage

#: The head node's message while its agent, which starts Ray jobs, is missing. The longest wait for the agent, in
#: seconds.
_NOBODY, _STARTING_S = "No available agent", 60.0
#: Why the agent may stay missing: an agent that does not get its port continues to run, but accepts no jobs.
_PORT_TAKEN = (
    "another program on the head's node may use the port of Ray's dashboard agent (52365 by default). Look for an "
    "error in the node's dashboard_agent.log. If the port is the cause, start the head with another port: ray start "
    "--head --dashboard-agent-listen-port PORT"
)
#: The option with which a raylet gets the command that starts workers.
_WORKER = "--python_worker_command="
#: Beginning of the line that Ray itself writes into a job's log.
_RAYS_LINE = "Running entrypoint for job"
#: Seconds within which the head node must accept a connection.
_REACH_S = 10.0
#: A Ray job that prints continuously is lost after this number of silent seconds: before its first message, and later.
_FIRST_S, _SILENCE_S = 180.0, 30.0
#: Seconds that stopped Ray jobs may take to end, and that this program may take to exit.
_STOPPED_S, _LEAVE_S = 5.0, 15.0
#: Seconds between the end of a stopped job and its deletion. Ray checks its jobs each second. If a job is deleted
#: before Ray has noticed its end, Ray marks the job as failed.
_SEEN_S = 2.5
#: Seconds after which a job that has ended by itself is deleted. This machine's clock is compared with the cluster's,
#: so the value is larger than usual clock differences.
_FORGOTTEN_S = 120.0
#: Longest wait for a job's final status after the job's last line, in seconds.
_ENDED_S = 10.0


class Api:
    """A client of the cluster's Jobs API.

    Args:
        output: The file descriptor that answers are written to.
        address: The address of the Jobs API. If None, the address is read from Ray's environment variables.
    """

    def __init__(self, output: int, address: str | None) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._client: Any = None
        self._address = address
        self._followed: list[str] = []  # jobs that print continuously

    def say(self, asked: dict[str, Any], event: str, **values: Any) -> None:
        """Send an answer to a request."""
        line = json.dumps({"id": asked["id"], "event": event, **values}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the reader has ended
            while line:
                line = line[os.write(self._output, line) :]

    def client(self) -> Any:
        """Return the client of Ray's Jobs API. The first call creates the client.

        Raises:
            Exception: the cluster cannot be reached.
        """
        from ray.job_submission import JobSubmissionClient

        with self._connecting:
            if self._client is None:
                if self._address is not None:
                    os.environ["RAY_API_SERVER_ADDRESS"] = self._address  # it has priority over an argument
                given = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
                _look_for(os.environ.get("RAY_API_SERVER_ADDRESS") or "")
                self._client = JobSubmissionClient(headers=given)
            return self._client

    # --- requests ---

    def submit(self, asked: dict[str, Any]) -> None:
        """Submit a Ray job, and report the job's messages."""
        try:
            client = self.client()
            if asked.get("alone"):
                self._end_others(client, asked)
        except Exception as error:  # noqa: BLE001 - Ray, requests and aiohttp raise many kinds of errors
            nothing_lost = not (asked.get("beats") or asked.get("forget"))
            self.say(asked, "refused" if nothing_lost else "unreached", reason=_line(error))
            return
        job = asked["job"]
        if asked.get("beats"):
            self._followed.append(job)
        try:
            self._submit(client, asked)
        except RuntimeError as error:  # the cluster refuses the job
            if not self._is_there(client, asked):
                self.say(asked, "refused", reason=_line(error))
                return
        except Exception as error:  # noqa: BLE001 - as above; it is not known whether the job exists
            self.say(asked, "unreached", reason=_line(error))
            return
        self.say(asked, "submitted")
        try:
            heard = asyncio.run(self._listen(client, asked))
            if not heard:
                self.say(asked, "over", reason=self._end_of(client, job))
        except Exception as error:  # noqa: BLE001 - the same
            self.say(asked, "unreached", reason=_line(error))
        if asked.get("forget"):
            self._forget(client, job)

    def _submit(self, client: Any, asked: dict[str, Any]) -> None:
        """Submit a Ray job. Retry while the head node's agent for jobs is starting.

        Raises:
            RuntimeError: the cluster refuses the job.
        """
        _check_python(client, asked["runtime_env"])
        until = time.monotonic() + _STARTING_S
        while True:
            try:
                client.submit_job(
                    entrypoint=asked["entrypoint"],
                    submission_id=asked["job"],
                    runtime_env={**asked["runtime_env"], "working_dir": asked["package"]},
                    metadata=asked["metadata"],
                )
                return
            except RuntimeError as error:
                if _NOBODY not in str(error):
                    raise
                if time.monotonic() > until:
                    raise RuntimeError(f"{_line(error)} ({_PORT_TAKEN})") from error
            time.sleep(1.0)

    def _is_there(self, client: Any, asked: dict[str, Any]) -> bool:
        """Return whether Ray has a job with the requested name and metadata. If so, an earlier submission succeeded,
        and only its answer was lost.
        """
        with contextlib.suppress(Exception):
            known = client.get_job_info(asked["job"]).metadata or {}
            return bool(asked["metadata"]) and all(known.get(key) == value for key, value in asked["metadata"].items())
        return False

    async def _listen(self, client: Any, asked: dict[str, Any]) -> bool:
        """Report the messages of a Ray job until the job ends or prints one of the messages in ``until``.

        Returns:
            Whether a message in ``until`` was printed.

        Raises:
            TimeoutError: a job that prints continuously has printed nothing for too long.
        """
        rest, heard = "", False
        lines = client.tail_job_logs(asked["job"]).__aiter__()
        while True:
            limit = (_SILENCE_S if heard else _FIRST_S) if asked.get("beats") else None
            try:
                text = await asyncio.wait_for(lines.__anext__(), limit)
            except StopAsyncIteration:
                return False
            except asyncio.TimeoutError:
                raise TimeoutError(f"the head has sent nothing for {limit:g} s") from None
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                with contextlib.suppress(ValueError):
                    message = json.loads(line) if line.startswith("{") else None
                    if isinstance(message, dict) and isinstance(message.get("op"), str):
                        heard = True
                        self.say(asked, "said", message=message)
                        if message["op"] in asked.get("until", ()):
                            return True

    def _end_of(self, client: Any, job: str) -> str:
        """Wait up to ``_ENDED_S`` seconds for the final status of a Ray job, and return a description of its status."""
        until = time.monotonic() + _ENDED_S
        while True:
            info = client.get_job_info(job)
            if info.status.is_terminal() or time.monotonic() > until:
                break
            time.sleep(0.1)
        message = str(info.message or "").strip()
        # Ray writes a line of its own when it has started the program. This line may follow the last line of the
        # program.
        lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith(_RAYS_LINE)]
        return f"Ray's job {job} is {info.status.value}" + (f": {lines[-1].rstrip('.')}" if lines else "")

    def stop(self, asked: dict[str, Any]) -> None:
        """Stop a Ray job."""
        with self._telling_errors(asked):
            self.client().stop_job(asked["job"])
            self.say(asked, "stopped")

    def look(self, asked: dict[str, Any]) -> None:
        """Report whether a Ray job is still pending or running."""
        with self._telling_errors(asked):
            self.say(asked, "seen", runs=not self.client().get_job_status(asked["job"]).is_terminal())

    @contextlib.contextmanager
    def _telling_errors(self, asked: dict[str, Any]) -> Iterator[None]:
        """Convert errors in the block to the answers ``refused`` and ``unreached``, with the reason."""
        try:
            yield
        except RuntimeError as error:
            self.say(asked, "refused", reason=_line(error))
        except Exception as error:  # noqa: BLE001 - the same
            self.say(asked, "unreached", reason=_line(error))

    # --- jobs that are not needed any more ---

    def _end_others(self, client: Any, asked: dict[str, Any]) -> None:
        name = asked["alone"]
        for info in client.list_jobs():
            if (info.metadata or {}).get(name) != asked["metadata"][name]:
                continue
            if not info.status.is_terminal():
                client.stop_job(info.submission_id)
            elif time.time() - (info.end_time or 0) / 1000 > _FORGOTTEN_S:
                client.delete_job(info.submission_id)

    def _forget(self, client: Any, *jobs: str) -> None:
        """Stop the named Ray jobs, and delete them from Ray."""
        with contextlib.suppress(Exception):
            for job in jobs:
                client.stop_job(job)
            until = time.monotonic() + _STOPPED_S
            while time.monotonic() < until and not all(client.get_job_status(job).is_terminal() for job in jobs):
                time.sleep(0.1)
            time.sleep(_SEEN_S)
            for job in jobs:
                client.delete_job(job)

    def leave(self) -> None:
        """Stop and delete the Ray jobs that print continuously, then exit."""
        threading.Timer(_LEAVE_S, os._exit, [1]).start()
        if self._client is not None:
            self._forget(self._client, *self._followed)
        os._exit(0)


def _look_for(address: str) -> None:
    """Check that a program listens at the address of the Jobs API, because Ray's client may retry for a long time.

    Raises:
        OSError: no program listens at the address.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        try:
            socket.create_connection((parts.hostname, port), timeout=_REACH_S).close()
        except OSError as error:
            raise OSError(f"Ray's Jobs API does not answer at {address}: {error}") from None


def _check_python(client: Any, runtime_env: dict[str, Any]) -> None:
    """Check that the head node can start workers with its Python. The check is skipped if the head node does not report
    its Python.

    Raises:
        RuntimeError: the head node cannot start workers. The message has the reason.
    """
    found = []
    with contextlib.suppress(Exception):
        for node in client._do_request("GET", "/nodes?view=summary", timeout=_REACH_S).json()["data"]["summary"]:
            if node["raylet"]["isHeadNode"]:
                found += [word[len(_WORKER) :] for word in node["cmdline"] if word.startswith(_WORKER)]
    for command in found:
        reason = shortage.split_python(shlex.split(command)[0], runtime_env)
        if reason is not None:
            raise RuntimeError(reason)


def _line(error: BaseException) -> str:
    """Convert an error to one line. The line is the last line of a traceback, or the joined lines of any other text."""
    lines = [line.strip() for line in str(error).replace("\\n", "\n").splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return (lines[-1] if "Traceback" in str(error) else " ".join(lines))[:500].rstrip(".")


def main() -> int:
    """Handle requests until the standard input ends.

    Returns:
        The exit code, which is always 0.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # Ray's output must not mix with the answers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    api = Api(output, json.loads(sys.stdin.buffer.readline() or b"{}").get("address"))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        threading.Thread(target=getattr(api, asked.pop("op")), args=(asked,), daemon=True).start()
    api.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
