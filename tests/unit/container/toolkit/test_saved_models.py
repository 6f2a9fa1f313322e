"""Models that were saved into the working folder."""

from __future__ import annotations

import os
from pathlib import Path

from container.toolkit.saved_models import newer_than


def test_new_models_are_found_and_old_hidden_and_other_files_are_not(tmp_path: Path) -> None:
    names = ["a.keras", "b/w.weights.h5", "c/1/saved_model.pb", "c/1/variables/x", ".git/d.h5", "old.pt", "train.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 100 if name == "old.pt" else 1000))
    (tmp_path / "linked.h5").symlink_to("a.keras")
    (tmp_path / "loop").symlink_to(".")
    assert newer_than(tmp_path, 500) == ["a.keras", "b/w.weights.h5", "c/1"]
    assert newer_than(tmp_path / "missing", 500) == []


def test_the_search_is_bounded(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 30)
    deep.mkdir(parents=True)
    (deep / "model.h5").touch()
    assert newer_than(tmp_path, 0) == []
