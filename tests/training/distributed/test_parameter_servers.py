"""A cluster with parameter servers: chief, workers and servers, and that all of them end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import launching
import pytest

pytestmark = pytest.mark.tensorflow


def test_parameter_servers(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("ps_checks.py"))
    began = time.monotonic()
    chief, *others = launching.parameter_servers(2, 2, [script, str(tmp_path)], TF_USE_LEGACY_KERAS="1")
    assert chief.code == 0 and "all passed" in chief.text, chief.text
    assert time.monotonic() - began < launching.TIMEOUT_S
    for ended in others:
        assert ended.code == 0, (ended.name, ended.text)
        assert "only the chief" not in ended.text


def test_a_server_without_a_task_is_refused() -> None:
    serve = ["-c", "import sys; from container.distributed.tensorflow import server; sys.exit(server.serve())"]
    ended = launching.alone(serve)
    assert ended.code == 2 and "TF_CONFIG must name" in ended.text


def test_a_chief_names_who_is_missing() -> None:
    with launching.reserved_ports(3) as numbers:
        chief, worker, server = (f"127.0.0.1:{port}" for port in numbers)
        cluster = {"chief": [chief], "worker": [worker], "ps": [server]}
        ended = launching.alone(
            ["-c", "from container import distributed; distributed.init(timeout=1)"],
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}),
        )
    assert ended.code == 1
    assert f"no answer within 1 s from ps 0 ({server}), worker 0 ({worker})" in ended.text
