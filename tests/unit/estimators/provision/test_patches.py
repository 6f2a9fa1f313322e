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


def test_hunks_of_a_diff() -> None:
    diff = "Why.\n--- a/file\n+++ b/file\n@@ -1,2 +1,2 @@\n a\n-old\n+new\n@@ -9 +9 @@\n-x\n\n"
    diff += "--- a/b\n+++ b/b\n@@ -1 +1 @@\n+y\n"
    assert list(patches.hunks(diff)) == [("file", "a\nold\n", "a\nnew\n"), ("file", "x\n", ""), ("b", "", "y\n")]


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
