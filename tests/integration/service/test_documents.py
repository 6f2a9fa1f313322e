"""What the docs show of the official clients: the blocks that ``tests/integration/docs`` leaves to them."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest
from run_documents import run_document
from serving import Serving

pytestmark = [pytest.mark.network, pytest.mark.tensorflow, pytest.mark.horovod]


@pytest.mark.parametrize("client", ["aws", "sagemaker"])
def test_the_blocks_that_need_a_client_do_what_the_document_says(
    client: str, served: Serving, request: pytest.FixtureRequest, tmp_path: Path, prepared_digits: Path
) -> None:
    python = Path(request.getfixturevalue({"aws": "aws_cli", "sagemaker": "sagemaker_2"}[client]))
    for document in documents.that_need(client):
        variables = served.by_profile()
        variables["PATH"] = f"{python.parent}:{variables['PATH']}"
        run_document(document, tmp_path, client, digits=prepared_digits, environment=variables)
