"""The outputs of hosts on this machine."""

from __future__ import annotations

from pathlib import Path

from estimators.backends.hosts.here import has_entries


def test_a_model_that_is_no_folder_is_not_taken_for_no_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("weights")
    assert has_entries(tmp_path) and has_entries(tmp_path / "file")
    assert not has_entries(tmp_path / "missing")
