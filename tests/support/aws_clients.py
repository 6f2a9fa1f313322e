"""AWS for the tests of the SageMaker backend: clients whose answers are botocore's Stubber's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_identity import REGION

from estimators.backends.sagemaker.aws import Aws


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine's own AWS configuration; keys that are nobody's."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
    return tmp_path


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """``stub("sts")`` is the Stubber of that service for every :class:`Aws`; what it expects must have been asked."""
    from botocore.stub import Stubber

    made = Aws()
    stubbers: dict[str, Any] = {}
    real = Aws.client

    def client(self: Aws, service: str) -> Any:
        of(service)
        return made._clients[service]

    def of(service: str) -> Any:
        if service not in stubbers:
            stubbers[service] = Stubber(real(made, service))
            stubbers[service].activate()
        return stubbers[service]

    monkeypatch.setattr(Aws, "client", client)
    yield of
    for stubber in stubbers.values():
        stubber.assert_no_pending_responses()
