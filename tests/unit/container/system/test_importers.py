"""What importers leave in their folder when they are killed."""

from __future__ import annotations

from pathlib import Path

from container.system import importers

#: Higher than any process's.
_NOBODY = (1 << 22) + 1


def test_what_importers_have_left_that_were_killed_is_removed_with_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "importers"
    folder.mkdir(mode=0o700)
    for name in ("one", "other"):
        (folder / name).touch()
        importers.note(folder / name, _NOBODY, ["tensorflow"], None)
    importers.forget_ended(folder)
    assert not folder.exists()
    importers.forget_ended(folder)  # nothing is there any more
