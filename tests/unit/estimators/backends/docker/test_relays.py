"""Which of AWS's endpoints containers reach by another address, and that what they send arrives, without an engine."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.docker.relays import Relays
from estimators.backends.images.errors import EngineError


class Job:
    """A backend that keeps its warnings."""

    def __init__(self, loop: AsyncioLoop) -> None:
        self.loop = loop
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Engine:
    def gateway(self, name: str) -> str:
        assert name == "bridge"
        return "127.0.0.1"


class Podman:
    def gateway(self, name: str) -> str:
        raise EngineError("no such network")


@pytest.fixture
def job(asyncio_loop: AsyncioLoop) -> Any:
    return Job(asyncio_loop)


def opened(job: Any, engine: Any, asked: dict[str, str]) -> dict[str, str]:
    relays = Relays(job)
    found = dict(job.loop.run(relays.open(engine, asked)))
    relays.close()
    return found


def test_servers_on_loopback_are_relayed_once(job: Any) -> None:
    asked = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8666",
        "AWS_ENDPOINT_URL_S3": "http://localhost:8667/path",
        "AWS_REGION": "eu-west-1",
    }
    relays = Relays(job)
    found = dict(job.loop.run(relays.open(Engine(), asked)))  # type: ignore[arg-type]
    assert found["AWS_REGION"] == "eu-west-1" and found["AWS_ENDPOINT_URL_S3"].endswith("/path")
    assert "8666" not in found["AWS_ENDPOINT_URL"] and "8667" not in found["AWS_ENDPOINT_URL_S3"]
    assert job.loop.run(relays.open(Engine(), asked)) == found, "in the next attempt"  # type: ignore[arg-type]
    relays.close()


async def connected(relays: Relays, server_port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a container does to a server on this machine's loopback."""
    found = await relays.open(Engine(), {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server_port}"})  # type: ignore[arg-type]
    host, _, port = found["AWS_ENDPOINT_URL"].removeprefix("http://").partition(":")
    assert int(port) != server_port
    return await asyncio.open_connection(host, int(port))


def test_what_containers_send_reaches_the_server_whole_and_in_both_directions(job: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])  # until the container has said everything
        writer.close()

    async def exchange() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        relays, data = Relays(job), os.urandom(3_000_000)
        reader, writer = await connected(relays, server.sockets[0].getsockname()[1])
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data[::-1]
        writer.close()
        relays.close()
        server.close()

    job.loop.run(exchange())


def test_nobody_waits_for_a_server_that_does_not_run(job: Any) -> None:
    async def exchange() -> None:
        server = await asyncio.start_server(lambda *connection: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        relays = Relays(job)
        reader, writer = await connected(relays, port)
        assert await reader.read() == b""
        writer.close()
        relays.close()

    job.loop.run(exchange())


@pytest.mark.parametrize(
    "url",
    ["http://192.168.0.5:9000", "https://s3.amazonaws.com", "http://127.0.0.1:99999", "http://[::1", "eu-west-1", ""],
)
def test_what_is_elsewhere_stays_as_it_is(url: str, job: Any) -> None:
    assert opened(job, None, {"AWS_ENDPOINT_URL": url}) == {"AWS_ENDPOINT_URL": url}


def test_where_containers_cannot_reach_this_machine_it_is_said(job: Any) -> None:
    asked = {"AWS_ENDPOINT_URL": "http://127.0.0.1:8666"}
    assert opened(job, Podman(), asked) == asked
    assert job.warnings == [
        "containers cannot reach http://127.0.0.1:8666, which is on this machine's loopback: no such network. boto3 "
        "in a script cannot connect there."
    ]
