"""What a supervisor answers to a request that it does not know."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest

from estimators.supervisor.clients import Clients


@pytest.mark.parametrize(
    ("elastic", "allowed"),
    [
        (None, "'ping', 'stop'"),
        (object(), "'ping', 'stop', 'hosts', 'add_hosts', 'remove_host', 'interrupt', 'kill_rank'"),
    ],
)
def test_an_unknown_operation_is_refused_with_those_that_the_job_has(elastic: object, allowed: str) -> None:
    supervisor: Any = types.SimpleNamespace(attempt=types.SimpleNamespace(elastic=elastic))
    answer = asyncio.run(Clients(None, supervisor).answer({"op": "stpo"}))  # type: ignore[arg-type]
    said = f"unknown operation 'stpo'. Did you mean 'stop'? Allowed: {allowed}."
    assert answer == {"ok": False, "error": said}
