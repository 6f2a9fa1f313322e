"""Points at which a test may hold a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.system.holding import FOLDER, hold


@pytest.mark.parametrize("folder", [None, "none", "empty"])
def test_nothing_is_held_where_nobody_holds(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    if folder is not None:
        monkeypatch.setenv(FOLDER, str(tmp_path / folder))
    hold("a.point")
