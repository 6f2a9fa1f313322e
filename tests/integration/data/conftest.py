"""A real S3 server, shared by the session; every test has a bucket and a proxy of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server

from estimators.service.s3.server import S3Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server."""
    with s3_server.start(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def faults(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[s3_server.Faults]:
    """The proxy, to which the environment leads."""
    from container.agent.s3 import client

    proxy = s3_server.Faults(s3_process)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**s3_process.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    client.forget()
    yield proxy
    proxy.close()
    client.forget()


@pytest.fixture
def s3(s3_process: S3Server, faults: s3_server.Faults) -> s3_server.Bucket:
    """A bucket; the environment is set so that everything finds it, through the proxy."""
    return s3_server.Bucket(s3_process, f"bucket-{os.getpid()}-{next(_numbers)}")
