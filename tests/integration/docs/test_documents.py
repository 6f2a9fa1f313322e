"""Every command and snippet of the README and the docs is run, and prints what the document says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import documents
import pytest
from run_documents import project_of, run_document

#: Who gives what blocks need.
GIVEN_ELSEWHERE = {
    "ssh": "tests/integration/cluster/test_hosts.py",
    "docker": "tests/integration/containers/test_documents.py",
    "aws": "tests/integration/service/test_documents.py",
    "sagemaker": "tests/integration/service/test_documents.py",
    "slurm": "tests/integration/cluster/test_slurm.py",
    "ray": "tests/integration/cluster/test_ray.py",
    "spark": "tests/integration/cluster/test_spark.py",
}


#: The page that says whether documents run at all.
LANDING = "in-the-script.md"


def with_blocks() -> list[Any]:
    return [
        pytest.param(document, marks=pytest.mark.landing) if document.name == LANDING else document
        for document in documents.documents()
        if any(block.executed and "needs" not in block.instructions for block in documents.blocks(document))
    ]


@pytest.mark.tensorflow
@pytest.mark.horovod
@pytest.mark.parametrize("document", with_blocks(), ids=project_of)
def test_the_blocks_of_a_document_do_what_it_says(
    document: Path, own_temporary_folder: Path, prepared_digits: Path, warm: None
) -> None:
    # HOME is the same for all documents, so that what one's jobs import is there for the next one's.
    folder = own_temporary_folder / "document"
    folder.mkdir()
    run_document(document, folder, digits=prepared_digits)


def test_every_block_is_run_or_says_why_not() -> None:
    """None is left out in silence, and what needs something has a test that gives it."""
    for document in documents.documents():
        for block in documents.blocks(document):
            assert block.instructions.get("skip") != "", f"{block}: no reason"
            needed = block.instructions.get("needs")
            if needed is not None:
                test = documents.ROOT / GIVEN_ELSEWHERE[needed]
                assert test.is_file(), f"{block}: nobody gives {needed}"
            if "then" in block.instructions:
                assert "file" in block.instructions or "script" in block.instructions


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("total 24.5 s", "  total   1.2 s"),
        ("total 24.5 s", "total 1 min 3 s"),
        ("a\n…\nb", "b\na"),
        ("name-2026-11-21-16-08-27-702  Completed", "name-2026-12-01-00-00-00-000 Completed"),
        ("loss: 0.5 · …", "loss: 1e-05 · and more"),
        ("…", ""),
    ],
)
def test_figures_may_differ(expected: str, printed: str) -> None:
    assert documents.missing(expected, printed) == []


@pytest.mark.parametrize(
    ("expected", "printed"), [("Completed", "Failed"), ("loss: 1", "loss: nan"), ("a …", "b c"), ("a", "")]
)
def test_words_may_not(expected: str, printed: str) -> None:
    assert documents.missing(expected, printed) == [expected]


def test_a_block_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner would tell."""
    monkeypatch.chdir(tmp_path)
    page = documents.ROOT / "docs" / "page.md"
    runner = documents.Runner()

    def run(language: str, text: str, **instructions: str) -> bool:
        return runner.run(documents.Block(page, 1, language, text, instructions))

    assert run("sh", "export FOUND=1")
    assert run("python", "import os\nassert os.environ['FOUND'] == '1'")
    assert run("sh", "echo found $FOUND 2.5 s")
    assert run("text", "found 7 0.1 s\n", output="")
    assert run("console", "$ echo one \\\n    two\none two\n")
    assert run("console", "$ echo one; exit 3\none\n", fails="")
    with pytest.raises(documents.Drift, match="exit code 3"):
        run("sh", "exit 3")
    with pytest.raises(documents.Drift, match="were not printed"):
        run("console", "$ echo one\ntwo\n")
    with pytest.raises(ZeroDivisionError):
        run("python", "1 / 0")
    assert not run("text", "nothing")
    assert not run("sh", "exit 3", skip="a reason")
    assert not run("sh", "exit 3", needs="docker")
