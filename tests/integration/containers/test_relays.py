"""Which of AWS's endpoints containers are led to by another address, without an engine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from estimators.backends.docker.relays import Relays


class Agents:
    """Takes what it is asked to relay."""

    def __init__(self) -> None:
        self.relayed: list[dict[int, str]] = []
        self.said: list[str] = []
        self.ended: Callable[[], None] = lambda: None

    def relay(self, servers: Mapping[int, str], ended: Callable[[], None]) -> bool:
        for fd in servers:
            with socket.socket(fileno=os.dup(fd)) as given:
                assert given.getsockname()[0] == "127.0.0.1"
        self.relayed.append(dict(servers))
        self.ended = ended
        return True

    def warn(self, text: str) -> None:
        self.said.append(text)


class Engine:
    def gateway(self, name: str) -> str:
        assert name == "bridge"
        return "127.0.0.1"


def test_servers_on_loopback_are_relayed_once() -> None:
    agents: Any = Agents()
    relays = Relays(agents)
    relays.look(Engine())  # type: ignore[arg-type]
    asked = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8666",
        "AWS_ENDPOINT_URL_S3": "http://localhost:8667/path",
        "AWS_REGION": "eu-west-1",
    }
    assert Relays.wanted(asked)
    found = relays.settings(asked)
    assert found["AWS_REGION"] == "eu-west-1" and found["AWS_ENDPOINT_URL_S3"].endswith("/path")
    assert "8666" not in found["AWS_ENDPOINT_URL"]
    assert sorted(agents.relayed[0].values()) == ["127.0.0.1:8666", "localhost:8667"]
    assert relays.settings(asked) == found and len(agents.relayed) == 1
    agents.ended()  # as at the end of an attempt
    assert relays.settings(asked).keys() == found.keys() and len(agents.relayed) == 2


@pytest.mark.parametrize("url", ["http://192.168.0.5:9000", "https://s3.amazonaws.com", "eu-west-1", ""])
def test_what_is_elsewhere_stays_as_it_is(url: str) -> None:
    agents: Any = Agents()
    assert not Relays.wanted({"AWS_ENDPOINT_URL": url})
    assert Relays(agents).settings({"AWS_ENDPOINT_URL": url}) == {"AWS_ENDPOINT_URL": url}
    assert not agents.relayed


def test_where_containers_cannot_reach_this_machine_it_is_said() -> None:
    agents: Any = Agents()
    asked = {"AWS_ENDPOINT_URL": "http://127.0.0.1:8666"}
    assert Relays(agents).settings(asked) == asked
    assert agents.said == [
        "containers cannot reach http://127.0.0.1:8666, which is on this machine's loopback: the engine has no default "
        "bridge. boto3 in a script cannot connect there."
    ]
