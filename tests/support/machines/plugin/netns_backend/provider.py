"""The provider: takes machines of a fleet that is there already, by connecting to what listens on them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts.membership import Located, MembershipListener, News, Watching
from estimators.backends.hosts.provider import (
    Finding,
    Host,
    HostProvider,
    HostUnavailable,
    Placement,
    ProvidedJob,
)
from estimators.backends.hosts.remote import SILENCE_S, HostSource, RemoteHost
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec


class Announcing(HostSource):
    """A machine whose agent gets a signal when it will be taken."""

    hears_signals = True

    def __init__(self, hosts: dict[str, RemoteHost], name: str, notice_s: float) -> None:
        self._hosts = hosts
        self._name = name
        self._notice_s = notice_s

    def signalled(self, number: int) -> None:
        """Announce that the machine will be taken."""
        self._hosts[self._name].notice(self._notice_s)


class Board(Watching):
    """A file that somebody keeps, {address: {"slots": N}}: ``"wanted_in"`` says when a machine is wanted back."""

    decides = True
    title = "the board"

    def __init__(self, loop: AsyncioLoop, path: Path) -> None:
        super().__init__(loop)
        self._path = path

    async def watch(self, membership: MembershipListener) -> None:
        """Look again and again."""
        news = News(membership)
        while True:
            try:
                machines = json.loads(self._path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                news.problem(str(error))
            else:
                news.places({address: machine.get("slots") for address, machine in machines.items()})
                for address, machine in machines.items():
                    if "wanted_in" in machine:
                        news.leaving(address, machine["wanted_in"])
            await asyncio.sleep(0.1)


class NetnsProvider(HostProvider):
    """Hosts on the machines that ``backend_options={"fleet": FILE}`` lists."""

    name: ClassVar[str] = "netns"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True, locates=True)

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self._options = job.options.backend_options
        self._locks: dict[str, int] = {}  # host -> the lock on its machine
        self._hosts: dict[str, RemoteHost] = {}
        self._located = Located()

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse a job of more hosts than there are machines."""
        machines = _machines(options.backend_options)
        if spec.instance_count > len(machines):
            return [f"instance_count={spec.instance_count}, and the fleet has {len(machines)} machines; add some."]
        return []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        machines = _machines(options.backend_options)
        places = dict(zip(spec.hosts, machines, strict=False))
        return Placement(
            base_dir=f"/tmp/{spec.name}/hosts/{{host}}/ml",
            connect={host: ("connect", place["address"]) for host, place in places.items()},
        )

    def membership(self) -> Board | None:
        """Return the board, where the job has one: then that decides which machines the job is on."""
        board = self._options.get("board")
        return Board(self.loop, Path(board)) if board else None

    def locate(self, name: str, place: str) -> None:
        """Take the machine of that address for a host."""
        self._located.locate(name, place)

    async def acquire(self, name: str) -> Host:
        """Connect to a machine that nobody has, or to the one that is named for the host."""
        if self._options.get("board"):
            await self._located.wait(name)
        for machine in _machines(self._options):
            if self._located.get(name) not in (None, machine["address"]):
                continue
            with contextlib.ExitStack() as given_back:
                lock = os.open(machine["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                given_back.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    connection = await _connect(machine)
                except (OSError, asyncio.TimeoutError):  # somebody has it, or it is not reachable
                    continue
                self._hosts[name] = await self._greet(name, machine, connection)
                self._locks[name] = lock
                given_back.pop_all()
                return self._hosts[name]
        raise HostUnavailable("no machine of the fleet is free and reachable")

    async def _greet(self, name: str, machine: dict[str, Any], connection: int) -> RemoteHost:
        notice = self._options.get("notice")  # in how many seconds a machine is taken whose agent gets a signal
        return await RemoteHost.connect(
            self.loop,
            name,
            connection,
            connection,
            root=f"{self.spec.name}/hosts/{name}",
            address=machine["address"],
            caller_address=machine["caller"],
            interface="eth0",
            silence=float(self._options.get("silence", SILENCE_S)),
            source=Announcing(self._hosts, name, notice) if notice else HostSource(),
        )

    def release(self, host: Host) -> None:
        """Let others have the machine."""
        self._located.forget(host.name)
        lock = self._locks.pop(host.name, None)
        if lock is not None:
            os.close(lock)

    def close(self) -> None:
        """Let others have all of them."""
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """Say whether there is a fleet."""
        return [Finding(name=cls.name, ok=True, text="machines are named by backend_options={'fleet': FILE}")]


async def _connect(machine: dict[str, Any]) -> int:
    """Return a connection to a machine, which starts the agent for it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:  # nothing is left to close of one that was detached
        connection.setblocking(False)
        await asyncio.wait_for(loop.sock_connect(connection, (machine["address"], machine["port"])), 1.0)
        await loop.sock_sendall(connection, machine["token"].encode() + b"\n")
        return connection.detach()


def _machines(options: Any) -> list[dict[str, Any]]:
    machines: list[dict[str, Any]] = json.loads(Path(options["fleet"]).read_text(encoding="utf-8"))
    return machines
