"""What the README and the docs show of containers: the blocks that ``tests/integration/docs`` leaves to an engine."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest
from run_documents import project_of, run_document


@pytest.mark.tensorflow
@pytest.mark.horovod
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("document", documents.that_need("docker"), ids=project_of)
def test_the_blocks_that_need_an_engine_do_what_the_document_says(
    document: Path, tmp_path: Path, prepared_digits: Path
) -> None:
    run_document(document, tmp_path, "docker", digits=prepared_digits)
