"""Channels as processes see them; ``tests/integration/containers/test_inputs.py`` has the same for containers."""

from __future__ import annotations

from pathlib import Path

import clusters

WRITES = """
import os, pathlib
import aid
root = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
said = {path.name: path.read_text() for path in sorted(root.iterdir())}
for path in root.iterdir():
    path.write_text("changed")
(root / "index").mkdir()
aid.report(said=said)
"""


def test_a_script_may_write_into_its_channels_and_changes_no_one_elses(make: clusters.Make, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("aaa")
    job = clusters.fit(make(WRITES, hosts=2), {"train": str(data)}, logs=False)
    assert [one["said"] for one in clusters.reports(job).values()] == [{"a": "aaa"}] * 2
    assert [path.name for path in data.iterdir()] == ["a"] and (data / "a").read_text() == "aaa"
    assert not job.record.tree("algo-1").channel("train").exists(), "a record does not keep its bytes"
