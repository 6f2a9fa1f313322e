"""Speaks with Ray's Jobs API for who keeps the copy of a job: a client of Ray's, over HTTP.

    python -I ray_jobs.py

It is a program of its own, as Ray brings a hundred modules and threads, and its client waits. What is asked of it comes
as JSON lines, and so do its answers. Each question has an ``id``, which its answers have, too:

* ``connect``: ``address``; not answered: what comes next is;
* ``submit``: ``job`` (its submission id), ``entrypoint``, ``package`` (a zip file, the working directory),
  ``runtime_env``, ``metadata``; ``until`` (after which of its messages nobody listens any more), ``forget`` (whether
  Ray need not remember it then), ``alone`` (a name in the metadata: other jobs with its value are ended before),
  ``beats`` (whether it says something all the time). Answered by ``submitted``, then ``said`` with each ``message``
  that it prints, a line that is a JSON object with ``op``; at last ``over`` with ``reason``. Or by ``refused``, or
  ``unreached``, with ``reason``. A job that is there already, with the same metadata, is listened to.
* ``stop``: ``job``; answered by ``stopped``, or as above;
* ``look``: ``job``; answered by ``seen`` with ``runs``, or as above; ``refused`` where Ray has no such job.

When its input ends, it stops the jobs that say something all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shlex
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":  # a program of its own
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "ray"))
    import shortage  # type: ignore[import-not-found]
else:
    from estimators.backends.ray import shortage

#: What the head says while its agent, which takes jobs, is not there, and how long that is waited for, in seconds.
_NOBODY, _STARTING_S = "No available agent", 60.0
#: Why it may stay away: an agent that does not get its port goes on without what takes jobs.
_PORT_TAKEN = (
    "another program on the head's node may use the port of Ray's dashboard agent (52365 by default). Look for an "
    "error in the node's dashboard_agent.log. If the port is the cause, start the head with another port: ray start "
    "--head --dashboard-agent-listen-port PORT"
)
#: How a raylet is told by what it starts workers.
_WORKER = "--python_worker_command="
#: What Ray writes into a program's log.
_RAYS_LINE = "Running entrypoint for job"
#: How long the head may take to be reached, in seconds.
_REACH_S = 10.0
#: After how long without a word a job is lost that says something all the time, at first and later, in seconds.
_FIRST_S, _SILENCE_S = 180.0, 30.0
#: How long jobs that are stopped may take to end, and all that is done at the end, in seconds.
_STOPPED_S, _LEAVE_S = 5.0, 15.0
#: Ray looks after its jobs each second; one that is forgotten before it has seen the end it notes as failed.
_SEEN_S = 2.5
#: After how long a job that has ended by itself is forgotten, in seconds; the clocks are two machines'.
_FORGOTTEN_S = 120.0
#: How long one looks for a job's end after its last line, in seconds.
_ENDED_S = 10.0


class Api:
    """The cluster's Jobs API.

    Args:
        output: Where answers go.
        address: Where it is; None: as Ray's variables say.
    """

    def __init__(self, output: int, address: str | None) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._client: Any = None
        self._address = address
        self._followed: list[str] = []  # jobs that say something all the time

    def say(self, asked: dict[str, Any], event: str, **values: Any) -> None:
        """Answer."""
        line = json.dumps({"id": asked["id"], "event": event, **values}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # nobody hears it any more
            while line:
                line = line[os.write(self._output, line) :]

    def client(self) -> Any:
        """Return Ray's client.

        Raises:
            Exception: the cluster is not reached.
        """
        from ray.job_submission import JobSubmissionClient

        with self._connecting:
            if self._client is None:
                if self._address is not None:
                    os.environ["RAY_API_SERVER_ADDRESS"] = self._address  # it prefers its variables to what it is given
                given = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
                _look_for(os.environ.get("RAY_API_SERVER_ADDRESS") or "")
                self._client = JobSubmissionClient(headers=given)
            return self._client

    # --- what is asked ---

    def submit(self, asked: dict[str, Any]) -> None:
        """Submit a job, and tell what it says."""
        try:
            client = self.client()
            if asked.get("alone"):
                self._end_others(client, asked)
        except Exception as error:  # noqa: BLE001 - Ray's, requests' and aiohttp's own, which are many
            nothing_lost = not (asked.get("beats") or asked.get("forget"))
            self.say(asked, "refused" if nothing_lost else "unreached", reason=_line(error))
            return
        job = asked["job"]
        if asked.get("beats"):
            self._followed.append(job)
        try:
            self._submit(client, asked)
        except RuntimeError as error:  # the cluster says no
            if not self._is_there(client, asked):
                self.say(asked, "refused", reason=_line(error))
                return
        except Exception as error:  # noqa: BLE001 - the same; whether the job is there is not known
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
        """Submit a job, also where the head is just starting what takes it."""
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
        """Whether this very job was submitted before: the answer was lost."""
        with contextlib.suppress(Exception):
            known = client.get_job_info(asked["job"]).metadata or {}
            return bool(asked["metadata"]) and all(known.get(key) == value for key, value in asked["metadata"].items())
        return False

    async def _listen(self, client: Any, asked: dict[str, Any]) -> bool:
        """Tell what a job says; returns whether nobody wants to hear more."""
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
        """Say how a job has ended of which no more is heard."""
        until = time.monotonic() + _ENDED_S
        while True:
            info = client.get_job_info(job)
            if info.status.is_terminal() or time.monotonic() > until:
                break
            time.sleep(0.1)
        message = str(info.message or "").strip()
        # Ray writes its own line when the program has begun, so that it may come after the program's last one.
        lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith(_RAYS_LINE)]
        return f"Ray's job {job} is {info.status.value}" + (f": {lines[-1].rstrip('.')}" if lines else "")

    def stop(self, asked: dict[str, Any]) -> None:
        """Stop a job."""
        with self._telling_errors(asked):
            self.client().stop_job(asked["job"])
            self.say(asked, "stopped")

    def look(self, asked: dict[str, Any]) -> None:
        """See whether a job has not ended yet."""
        with self._telling_errors(asked):
            self.say(asked, "seen", runs=not self.client().get_job_status(asked["job"]).is_terminal())

    @contextlib.contextmanager
    def _telling_errors(self, asked: dict[str, Any]) -> Iterator[None]:
        """Answer a question that fails with the reason."""
        try:
            yield
        except RuntimeError as error:
            self.say(asked, "refused", reason=_line(error))
        except Exception as error:  # noqa: BLE001 - the same
            self.say(asked, "unreached", reason=_line(error))

    # --- jobs that are needed no more ---

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
        """Stop jobs, and have Ray remember them no more."""
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
        """End who says something all the time."""
        threading.Timer(_LEAVE_S, os._exit, [1]).start()
        if self._client is not None:
            self._forget(self._client, *self._followed)
        os._exit(0)


def _look_for(address: str) -> None:
    """See that somebody listens where the Jobs API is to be: Ray's client itself may try that for long.

    Raises:
        OSError: nobody does.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        try:
            socket.create_connection((parts.hostname, port), timeout=_REACH_S).close()
        except OSError as error:
            raise OSError(f"Ray's Jobs API does not answer at {address}: {error}") from None


def _check_python(client: Any, runtime_env: dict[str, Any]) -> None:
    """See that the head can start workers of jobs, as far as it says what its Python is.

    Raises:
        RuntimeError: it cannot.
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
    """Return an error as one line: the last of a traceback, all of others."""
    lines = [line.strip() for line in str(error).replace("\\n", "\n").splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return (lines[-1] if "Traceback" in str(error) else " ".join(lines))[:500].rstrip(".")


def main() -> int:
    """Serve until the input ends.

    Returns:
        0.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints must not get among the answers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    api = Api(output, json.loads(lines.get() or b"{}").get("address"))
    while line := lines.get():
        asked = json.loads(line)
        threading.Thread(target=getattr(api, asked.pop("op")), args=(asked,), daemon=True).start()
    api.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
