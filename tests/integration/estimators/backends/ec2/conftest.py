"""EC2's API, as moto answers it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ec2_server import Ec2Server


@pytest.fixture(scope="module")
def region() -> Iterator[Ec2Server]:
    """A server for a file's tests."""
    server = Ec2Server()
    yield server
    server.close()


@pytest.fixture
def ec2(region: Ec2Server, monkeypatch: pytest.MonkeyPatch) -> Ec2Server:
    """A region in which there is nothing yet."""
    region.reset()
    for name, value in region.environment.items():
        monkeypatch.setenv(name, value)
    return region
