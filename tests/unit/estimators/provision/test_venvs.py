"""Which folders are ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.provision import venvs
from estimators.provision.errors import VenvUnavailable


def test_a_free_place_is_taken(tmp_path: Path) -> None:
    assert not venvs.check_ownership(tmp_path / "new", ours=False)
    assert not venvs.check_ownership(tmp_path, ours=False)


def test_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(VenvUnavailable, match="--venv"):
        venvs.check_ownership(tmp_path, ours=False)
    assert (tmp_path / "thesis.tex").exists()


def test_identity_changes_when_a_venv_is_moved(tmp_path: Path) -> None:
    assert venvs.identity(tmp_path / "a") != venvs.identity(tmp_path / "b")
