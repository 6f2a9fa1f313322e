"""Models that were saved into the working folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.contract.layout import MLTree
from container.toolkit import train
from container.toolkit.saved_models import newer_than


def test_new_models_are_found_and_old_hidden_and_other_files_are_not(tmp_path: Path) -> None:
    names = ["a.keras", "b/w.weights.h5", "c/1/saved_model.pb", "c/1/variables/x", ".git/d.h5", "old.pt", "train.py"]
    names += ["logs/version_0/checkpoints/epoch=1.ckpt", "model.pkl"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 100 if name == "old.pt" else 1000))
    (tmp_path / "linked.h5").symlink_to("a.keras")
    (tmp_path / "loop").symlink_to(".")
    assert newer_than(tmp_path, 500) == ["a.keras", "b/w.weights.h5", "c/1", *names[-2:]]
    assert newer_than(tmp_path / "missing", 500) == []


def test_the_search_is_bounded(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 30)
    deep.mkdir(parents=True)
    (deep / "model.h5").touch()
    assert newer_than(tmp_path, 0) == []


def test_what_a_script_has_written_into_the_machines_own_folders_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "DEFAULT_BASE_DIR", str(tmp_path / "opt"))
    for name in ("model/weights.bin", "checkpoints/step-1", "elsewhere/x", "model/before"):
        (tmp_path / "opt" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt" / name).write_text("x")
    os.utime(tmp_path / "opt" / "model" / "before", (1, 1))
    told: list[Any] = []
    for base in (tmp_path / "host", tmp_path / "opt"):  # processes; a container
        environment: Any = SimpleNamespace(tree=MLTree(base), current_host="algo-1", attempt=0)
        runtime: Any = SimpleNamespace(tell=lambda kind, **data: told.append((kind, data)))
        train._tell_of_opt_ml(runtime, environment, 1000.0)
    ((kind, data),) = told
    assert kind == "warning"
    assert f"{tmp_path}/opt/checkpoints/step-1, {tmp_path}/opt/model/weights.bin. " in data["message"]
