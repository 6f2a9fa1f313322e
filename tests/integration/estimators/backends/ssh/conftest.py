from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import Keys, Server

from estimators.backends.openssh.command import SshSettings


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server(keys: Keys) -> Iterator[Server]:
    one = Server(keys, "127.0.0.2")
    yield one
    one.close()


@pytest.fixture
def settings(keys: Keys, tmp_path: Path) -> SshSettings:
    return SshSettings(known_hosts=tmp_path / "known hosts", config=keys.client())
