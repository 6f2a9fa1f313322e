"""Requests to a job at a dispatcher that real sshd reaches."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sshd import Keys, Server

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.dispatchers.ssh import SshDispatcher
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.supervisor.ipc_server import ControlSocket


class Echo:
    """A supervisor that says how long each request's reason is."""

    async def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "size": len(message["reason"])}


@pytest.mark.leaves("files")
def test_requests_wait_while_the_connection_is_busy(
    asyncio_loop: AsyncioLoop, keys: Keys, server: Server, tmp_path: Path
) -> None:
    """More requests than the pipe to ssh holds, short and long, while ssh does not read."""
    record = JobRecord.create("job-1", tmp_path / "there")
    record.write_request({})
    record.write_status(statuses.new_status({"TrainingJobName": "job-1"}, time.time()))
    record.write_options({})
    control = ControlSocket(asyncio_loop, record.control_socket, Echo())
    config = keys.client(f"Host {server.address}\n  Port {server.port}")
    options = {"python": sys.executable, "ssh_config": str(config), "home": str(tmp_path / "there")}
    sizes = [*[3000] * 30, 60_000]
    dispatcher = SshDispatcher(asyncio_loop, server.address, options)

    async def follow(begun: asyncio.Event) -> None:
        async for _ in dispatcher.follow("job-1", {}):
            begun.set()

    async def ask() -> list[dict[str, Any]]:
        begun = asyncio.Event()
        following = asyncio.ensure_future(follow(begun))
        await begun.wait()
        (connection,) = dispatcher._connections.open_ones
        assert connection._master is not None
        os.kill(connection._master.pid, signal.SIGSTOP)
        asked = [
            asyncio.ensure_future(dispatcher.ask({"op": "stop", "reason": "x" * size}))
            for size in [*[3000] * 30, 60_000]
        ]
        await asyncio.sleep(0)  # all are sent
        os.kill(connection._master.pid, signal.SIGCONT)
        answers = await asyncio.gather(*asked)
        following.cancel()
        await asyncio.wait([following])
        return answers

    try:
        answers = asyncio_loop.run(asyncio.wait_for(ask(), 60))
    finally:
        dispatcher.close()
        control.close()
        record.release()
    assert [answer["size"] for answer in answers] == sizes
