"""What the README and the docs show of containers: the blocks that ``tests/docs`` leaves to an engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "docs"))

import documents
from run_documents import project_of, run_document


@pytest.mark.tensorflow
@pytest.mark.horovod
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("document", documents.that_need("docker"), ids=project_of)
def test_the_blocks_that_need_an_engine_do_what_the_document_says(document: Path, tmp_path: Path) -> None:
    run_document(document, tmp_path, "docker")
