"""The changes to Horovod's source, on made-up files and on the real sdist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from container.system import archive
from container.system.files import cache_root
from estimators.provision import horovod, patches
from estimators.provision.errors import IndexUnreachable
from estimators.provision.packages import Installation
from estimators.provision.wheels import WheelCache


@pytest.mark.parametrize(("text", "count"), [("", 0), ("other\n", 0), ("old old", 2)])
def test_edit_refuses_a_passage_that_does_not_occur_once(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "file").write_text(text)
    edit = patches.Edit(path="file", before="old", after="new", reason="test")
    with pytest.raises(patches.PatchMismatch, match=f"occurs {count} times"):
        edit.apply(tmp_path)
    assert (tmp_path / "file").read_text() == text


def test_edit_changes_the_passage_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a old b\n")
    patches.Edit(path="file", before="old", after="new", reason="test").apply(tmp_path)
    assert (tmp_path / "file").read_text() == "a new b\n"


@pytest.mark.network
def test_all_edits_fit_the_released_source_once(tmp_path: Path) -> None:
    here = Installation.of_venv(Path(sys.prefix))
    # The user's own cache: the source is there after provisioning, and is downloaded otherwise.
    try:
        sdist = horovod.source(here, WheelCache(root=cache_root()))
    except IndexUnreachable as error:
        pytest.skip(str(error))
    archive.extract(sdist, tmp_path)
    root = tmp_path / f"horovod-{horovod.VERSION}"
    patches.apply(root)
    assert "&& HAVE_GPU" in (root / "horovod/tensorflow/xla_mpi_ops.cc").read_text()
    for name in ("__init__.py", "callbacks.py"):
        assert "from keras import" not in (root / "horovod/tensorflow/keras" / name).read_text()
    with pytest.raises(patches.PatchMismatch):
        patches.apply(root)
