"""Run a job's supervisor as a job of Ray's Jobs API: ``RunOptions(dispatcher="ray")``.

All communication uses HTTP, as for ``ray job submit``. On the head node, fleetfit runs three kinds of Ray jobs
(:mod:`estimators.client.ray_job`):

* The supervisor's Ray job runs the supervisor of the fleetfit job, and has the fleetfit job's name.
* While a process on the caller's machine follows the fleetfit job, a second Ray job reports the changes of the fleetfit
  job's record.
* For each request to the supervisor, a short Ray job passes the request on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import shlex
import socket
import zipfile
from collections.abc import AsyncGenerator, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.messages import Message
from container.contract.names import shown
from container.contract.rules import option
from container.system import folders
from container.system.asyncio_loop import AsyncioLoop
from container.system.background import Background
from container.system.removing import remove_tree
from estimators.backends.dispatchers import parcels
from estimators.backends.dispatchers.base import (
    PACKAGES,
    PARCEL,
    Dispatcher,
    DispatchRefused,
    Parcel,
    Unreached,
    packed,
)
from estimators.backends.hosts import shipping
from estimators.backends.hosts.cluster_client import ClusterClient, ProgramEnded
from estimators.backends.ray import diagnosis
from estimators.job.errors import ConfigurationError
from estimators.job.redaction import looks_secret
from estimators.job.request import JobOptions
from estimators.records.record import jobs_folder

#: The program that runs as a Ray job.
_PROGRAM = "estimators.client.ray_job"
#: Variables from which Ray's own clients read the address of the Jobs API, and the default address.
_ADDRESSES, _DEFAULT_ADDRESS = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"), "http://127.0.0.1:8265"
#: The longest argument that is passed to a program, in bytes: the limit of Linux, less a margin for the rest of the
#: shell command.
_LONGEST_ARGUMENT = (128 << 10) - (8 << 10)
#: The largest working directory that Ray accepts, in bytes.
_LARGEST = 500 << 20
#: Ray kills a stopped job after the script's grace period and this number of seconds.
_ENDING_S = 120
#: Pattern of the prefix of a message in Ray's own logs.
_LOGGED = re.compile(r"^\S+ \S+\s+[A-Z]+ \S+ -- ", re.MULTILINE)
_ADDRESS = re.compile(r"(https?|ray)://[^/\s@]+(/.*)?|auto|[^/\s@:]+:\d+")

_TEXT = rules.text()


def _address(where: str, value: Any) -> str:
    address: str = _TEXT(where, value)
    if _ADDRESS.fullmatch(address) is None:
        raise ConfigurationError(
            f"{where} must be the address of Ray's Jobs API, such as 'http://head:8265'; got {shown(address)}."
        )
    return address


def _runtime_env(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):  # the option was given on the command line, as JSON
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where} must be a dict such as {{'pip': ['pandas']}}; got {shown(value)}.")
    if "working_dir" in value:
        raise ConfigurationError(f"{where}: fleetfit sets 'working_dir' itself. Leave it out.")
    variables = value.get("env_vars") or {}
    if not isinstance(variables, Mapping):
        raise ConfigurationError(f"{where}: 'env_vars' must be a dict of variables, got {shown(variables)}.")
    return dict(value)


@dataclass(frozen=True, kw_only=True)
class RayDispatcherOptions:
    """The ``RunOptions(dispatcher_options={…})`` of a Ray cluster.

    Attributes:
        address: The cluster's address as for ``ray job submit``: ``http://head:8265``, ``ray://head:10001`` or
            ``auto``. If None, the address is the value of ``$RAY_API_SERVER_ADDRESS`` or ``$RAY_ADDRESS``. Without
            these variables, the address is port 8265 of this machine.
        python: The Python interpreter on the head node. The default is the first ``python`` in the ``PATH`` of the head
            node.
        home: The folder for records on the head node. The default is the user's default folder for records on the head
            node.
        runtime_env: Ray's ``runtime_env`` for the supervisor and the hosts. fleetfit sets the ``working_dir`` in it.
    """

    address: str | None = option(_address)
    python: str | None = option(_TEXT)
    home: str | None = option(_TEXT)
    runtime_env: Mapping[str, Any] = option(_runtime_env, default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RayDispatcherOptions:
        """Read the options of the dispatcher from ``dispatcher_options``.

        Raises:
            ConfigurationError: an option is unknown, or a value is invalid.
        """
        return rules.read(  # type: ignore[no-any-return]
            cls, options, what="option of dispatcher 'ray'", argument="dispatcher_options"
        )


class RayDispatcher(Dispatcher):
    """A dispatcher on a Ray cluster.

    See :class:`estimators.backends.dispatchers.base.Dispatcher` for the interface.
    """

    kind: ClassVar[str] = "ray"

    def __init__(self, loop: AsyncioLoop, place: str, options: Mapping[str, Any]) -> None:
        super().__init__(loop, place, options)
        self._options = RayDispatcherOptions.of(options)
        self._client: ClusterClient | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[Message]] = {}  # request -> its answers, until it has its last answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._job = ""
        self._folder = folders.make()

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None:
        """Refuse unknown options, and an environment without the client of Ray's Jobs API."""
        RayDispatcherOptions.of(options)
        reason = diagnosis.refusal(jobs=True)
        if reason is not None:
            raise ConfigurationError(f"dispatcher={place!r}: {reason}")

    @classmethod
    def pinned(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the cluster's address. If they have no address, add the address in Ray's environment
        variables, or the default.

        When another process attaches to the job later, Ray's environment variables may differ.
        """
        if RayDispatcherOptions.of(options).address is not None:
            return options
        return {**options, "address": next(filter(None, map(os.environ.get, _ADDRESSES)), _DEFAULT_ADDRESS)}

    # --- communication with Ray ---

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task. :meth:`close` cancels the task."""
        task = self.loop.start(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(self, **message: Any) -> asyncio.Queue[Message]:
        """Send a request to the program that uses Ray's Jobs API, and return the queue of the answers to the request.

        Start the program first if it is not running.
        """
        if self._client is None or self._client.over:
            self._client = ClusterClient(
                self.loop,
                Path(__file__).with_name("ray_jobs.py"),
                protected=set(),
                env=dict(os.environ),
                logged=_LOGGED,
                for_hosts=False,
            )
            self._client.send(op="connect", address=self._options.address)
            self._run(self._hear(self._client))
        number = next(self._numbers)
        answers = self._answers[number] = asyncio.Queue()
        self._client.send(id=number, **message)
        return answers

    async def _hear(self, client: ClusterClient) -> None:
        """Put the answers of the program that uses Ray's Jobs API into the requests' queues, until the program ends."""
        try:
            while True:
                event = await client.event()
                number, goes_on = event["id"], event["event"] in ("submitted", "said")
                answers = self._answers.get(number) if goes_on else self._answers.pop(number, None)
                if answers is not None:
                    answers.put_nowait(event)
        except ProgramEnded as error:
            said = f": {error}" if str(error) else ""
            reason = f"the process that talks to Ray has ended unexpectedly{said}"
        for answers in self._answers.values():
            answers.put_nowait({"event": "unreached", "reason": reason})
        self._answers.clear()

    def _submit_job(self, name: str, words: list[str], package: Path, **more: Any) -> asyncio.Queue[Message]:
        options = self._options
        home = () if options.home is None else ("--home", options.home)
        line = shlex.join([options.python or "python", "-m", _PROGRAM, *words, *home])
        return self._ask(op="submit", job=name, entrypoint=f"exec {line}", package=str(package), **more)

    # --- a fleetfit job ---

    async def prepare(self) -> None:
        """Do nothing, because Ray prepares a job when the job is submitted."""

    async def submit(self, parcel: Parcel) -> None:
        """Submit the Ray job that runs the supervisor, and wait until it reports that it has accepted the parcel.

        The parcel contains the job's request and files. Our code and the parcel are in the Ray job's working directory.
        """
        package = self._folder / "job.zip"
        self._job = parcel.name
        environment = dict(parcel.header["environment"])
        private = sorted(name for name in environment if looks_secret(name))
        header = {**parcel.header, "environment": {n: v for n, v in environment.items() if n not in private}}
        brought = dataclasses.replace(parcel, header=header)
        try:
            await Background.of(self.loop).call(lambda: _pack(package, brought))
        except Exception as error:  # noqa: BLE001 - files may raise many kinds of errors
            raise DispatchRefused(f"the job could not be packed: {error}") from None
        if package.stat().st_size > _LARGEST:
            raise DispatchRefused(
                f"the job's files on this machine have {package.stat().st_size >> 20} MiB, but Ray's Jobs API "
                f"accepts at most {_LARGEST >> 20} MiB. Put the data on S3."
            )
        self.news.put_nowait(f"{self.place}: sending the job there")
        stopping = math.ceil(JobOptions.from_dict(header["options"]).longest_grace) + _ENDING_S
        given = dict(self._options.runtime_env)
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(stopping), **(given.pop("env_vars", None) or {})}
        answers = self._submit_job(
            brought.name,
            ["run"],
            package,
            runtime_env={**given, "env_vars": variables},
            metadata={"fleetfit_created": str(header["created"])},
            until=["done", "refused"],
        )
        while True:
            event = await answers.get()
            if event["event"] == "submitted":
                with contextlib.suppress(OSError):  # the job's folder here is removed at the end
                    package.unlink()
            elif event["event"] == "refused":
                raise DispatchRefused(event["reason"])
            elif event["event"] == "unreached":
                raise Unreached(event["reason"])
            elif event["event"] == "over":
                raise DispatchRefused(f"{event['reason']}{_remedy(event['reason'])}")
            elif event["message"]["op"] == "refused":
                raise DispatchRefused(str(event["message"].get("error")))
            elif event["message"]["op"] == "done":
                return

    async def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """Submit a Ray job that reports the changes of the fleetfit job's record, and yield its messages.

        First stop the Ray jobs that earlier processes have submitted for the same copy of the record.
        """
        self._job = name
        words = ["follow", name, packed(have)]
        if len(words[-1]) > _LONGEST_ARGUMENT:
            words[-1] = packed({})  # as if the copy were empty: the whole record is sent again
        # Identifies this machine's copy of the record. Only one Ray job at a time may report changes for a copy.
        place = f"{socket.gethostname()}:{os.getuid()}:{jobs_folder() / name}"
        copy = hashlib.sha256(place.encode()).hexdigest()[:16]
        answers = self._submit_job(
            f"{name}-follow-{secrets.token_hex(4)}",
            words,
            self._code_package(),
            runtime_env=dict(self._options.runtime_env),
            metadata={"fleetfit_copy": copy},
            alone="fleetfit_copy",
            beats=True,
        )
        while True:
            event = await answers.get()
            if event["event"] == "submitted":
                continue
            if event["event"] != "said":
                raise Unreached(f"{event['reason']}{_remedy(event['reason'])}")
            message = event["message"]
            if message["op"] == "again":
                raise Unreached("the Ray job that reports the changes ends after an hour, and another one is started")
            if message["op"] == "missing":
                seen = await self._ask(op="look", job=name).get()
                if seen["event"] == "seen" and seen["runs"]:
                    raise Unreached("Ray has not started the job yet")
            if message["op"] != "beat":
                yield message
            if message["op"] in ("end", "missing"):
                return

    async def ask(self, message: Message) -> Message:
        """Submit a Ray job that passes a request to the supervisor, and return the supervisor's answer.

        A stop request without a grace period is not passed on. Ray's Jobs API stops the supervisor's Ray job instead.
        """
        if message["op"] == "stop" and message.get("grace") is None:
            answers = self._ask(op="stop", job=self._job)
        else:
            answers = self._submit_job(
                f"{self._job}-ask-{secrets.token_hex(4)}",
                ["ask", self._job, packed(message)],
                self._code_package(),
                runtime_env=dict(self._options.runtime_env),
                metadata={},
                until=["answer"],
                forget=True,
            )
        while (event := await answers.get())["event"] == "submitted":
            pass
        if event["event"] == "said":
            return {key: value for key, value in event["message"].items() if key != "op"}
        if event["event"] == "stopped":
            return {"ok": True}
        return {"ok": False, "error": f"dispatcher {self.place}: {event['reason']}."}

    def close(self) -> None:
        """Close the standard input of the program that uses Ray's Jobs API. The program then stops the Ray job that
        reports changes.
        """
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            self._client.close()
        remove_tree(self._folder, ignore_errors=True)

    def _code_package(self) -> Path:
        """Return the archive of our code.

        Its content is always the same. Ray therefore recognises an archive that was uploaded before, and does not
        upload it again.
        """
        path = self._folder / "code.zip"
        if not path.exists():
            _pack(path, None)
        return path


def _remedy(reason: str) -> str:
    """Return the remedy if a Ray job has failed because the head node lacks a Python package or the interpreter.

    Return "" for other reasons.
    """
    if "ModuleNotFoundError" in reason:
        needed = ", ".join(repr(name) for name in ("boto3", *PACKAGES) if name != "pip")
        return (
            f". The head's Python lacks packages that the supervisor needs: install fleetfit into this Python, or let "
            f"Ray install the packages with dispatcher_options={{'runtime_env': {{'pip': [{needed}]}}}}"
        )
    if re.search(r"python\S*: (command )?not found", reason):
        return ". Name an interpreter that exists there with dispatcher_options={'python': …}"
    return ""


def _pack(path: Path, parcel: Parcel | None) -> None:
    """Write the archive of a working directory for Ray. Equal files result in equal archives.

    Args:
        path: The path of the archive.
        parcel: The job's parcel. If None, the archive contains only our code.
    """
    staged = path.with_suffix(".part")
    with zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in shipping.code("estimators").files:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        if parcel is not None:
            with archive.open(zipfile.ZipInfo(PARCEL), "w", force_zip64=True) as stream:
                parcels.write(stream, parcel)
    staged.replace(path)
