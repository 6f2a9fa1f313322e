"""What a division that fails late leaves behind."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from container.agent.divide import divide
from container.contract.errors import AgentError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "one.txt"
    path.write_text("".join(f"{number}\n" for number in range(8)))
    return path


@pytest.mark.parametrize("earlier", [None, "an earlier one"])
def test_a_manifest_that_does_not_fit_on_the_disk_leaves_the_earlier_one(
    source: Path, tmp_path: Path, earlier: str | None
) -> None:
    manifest = tmp_path / "many.manifest"
    if earlier is not None:
        manifest.write_text(earlier)
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, hard))  # more than each part, and less than the manifest
    try:
        with pytest.raises(AgentError, match="cannot be written: File too large"):
            divide(str(source), str(tmp_path / "many"), 4, manifest=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "many"])
    assert earlier is None or manifest.read_text() == earlier
    assert list((tmp_path / "many").iterdir()) == []
