"""Which of AWS's endpoints containers are led to by another address, without an engine."""

from __future__ import annotations

import asyncio
import os
import socket
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.docker import relays
from estimators.backends.images.errors import EngineError


class Job:
    """A backend, and what runs its agents."""

    name = "algo-1"

    def __init__(self, loop: AsyncioLoop) -> None:
        self.loop = loop
        self.spec = self
        self.hosts = ("algo-1",)
        self.record: Any = None
        self.said = b""
        self.relayed: list[list[str]] = []
        self.killed = asyncio.Event()

    def hand_on(self, host: str, data: bytes) -> None:
        self.said += data

    def warn(self, text: str) -> None:
        self.said += text.encode()

    def run(self, argv: Sequence[str], *more: Any, pass_fds: Sequence[int]) -> object:
        for fd in pass_fds:
            with socket.socket(fileno=os.dup(fd)) as given:
                assert given.getsockname()[0] == "127.0.0.1"
        self.relayed.append([word for word in argv if ":" in word])
        return self

    async def wait(self) -> None:
        await self.killed.wait()


class Engine:
    def gateway(self, name: str) -> str:
        assert name == "bridge"
        return "127.0.0.1"


class Podman:
    def gateway(self, name: str) -> str:
        raise EngineError("no such network")


@pytest.fixture
def job(asyncio_loop: AsyncioLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    made = Job(asyncio_loop)
    made.record = types.SimpleNamespace(host_dir=lambda name: tmp_path / name)
    monkeypatch.setattr(relays, "LocalHost", lambda *arguments: made)
    monkeypatch.setattr(relays, "agent_command", lambda host, words: words)
    return made


def opened(job: Any, engine: Any, asked: dict[str, str], found: relays.Relays | None = None) -> dict[str, str]:
    found = found or relays.Relays(job, job)
    return dict(job.loop.run(found.open(engine, asked)))


@pytest.mark.leaves("files")
def test_servers_on_loopback_are_relayed_once(job: Any) -> None:
    asked = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8666",
        "AWS_ENDPOINT_URL_S3": "http://localhost:8667/path",
        "AWS_REGION": "eu-west-1",
    }
    one = relays.Relays(job, job)
    found = opened(job, Engine(), asked, one)
    assert found["AWS_REGION"] == "eu-west-1" and found["AWS_ENDPOINT_URL_S3"].endswith("/path")
    assert "8666" not in found["AWS_ENDPOINT_URL"]
    assert [sorted(words) for words in job.relayed] == [["127.0.0.1:8666", "localhost:8667"]]
    assert opened(job, Engine(), asked, one) == found and len(job.relayed) == 1


@pytest.mark.leaves("files")
def test_an_agent_that_was_killed_is_replaced(job: Any) -> None:
    asked, one = {"AWS_ENDPOINT_URL": "http://127.0.0.1:8666"}, relays.Relays(job, job)
    found = opened(job, Engine(), asked, one)
    job.killed.set()
    job.loop.run(asyncio.sleep(0))
    assert opened(job, Engine(), asked, one) != found and len(job.relayed) == 2
    assert opened(job, Podman(), asked, one) == asked, "an address at which nothing listens any more is not used"


@pytest.mark.parametrize("url", ["http://192.168.0.5:9000", "https://s3.amazonaws.com", "eu-west-1", ""])
def test_what_is_elsewhere_stays_as_it_is(url: str, job: Any) -> None:
    assert opened(job, None, {"AWS_ENDPOINT_URL": url}) == {"AWS_ENDPOINT_URL": url}
    assert not job.relayed


@pytest.mark.leaves("files")
def test_where_containers_cannot_reach_this_machine_it_is_said(job: Any) -> None:
    asked = {"AWS_ENDPOINT_URL": "http://127.0.0.1:8666"}
    assert opened(job, Podman(), asked) == asked
    assert (
        b"containers cannot reach http://127.0.0.1:8666, which is on this machine's loopback: no such network. boto3 "
        b"in a script cannot connect there."
    ) in job.said
