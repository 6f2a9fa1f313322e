"""One endpoint for all tests that need no other, and the official clients' environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import clients
import pytest
import serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Serving]:
    """The endpoint; five jobs may run at once."""
    endpoint = serving.Serving(tmp_path_factory.mktemp("endpoint"), "--max-jobs", "5")
    try:
        yield endpoint
    finally:
        endpoint.close()


def _environment(name: str) -> Path:
    try:
        return clients.python_of(name)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def sagemaker_2() -> Path:
    """The Python of an environment with the SageMaker SDK 2.x."""
    return _environment("sagemaker-2")


@pytest.fixture(scope="session")
def aws_cli() -> Path:
    """The aws command line."""
    return _environment("aws").parent / "aws"
