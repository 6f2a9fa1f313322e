"""A training on files that is killed within an epoch goes on there by default, with either Keras."""

from __future__ import annotations

import json
from pathlib import Path

import launching
import pytest

SCRIPT = str(Path(__file__).with_name("going_on.py"))


@pytest.mark.tensorflow
@pytest.mark.parametrize(("legacy", "length"), [pytest.param("1", "known", marks=pytest.mark.soak), ("0", "unknown")])
def test_each_record_counts_once_in_each_epoch_and_each_step_once(tmp_path: Path, legacy: str, length: str) -> None:
    killed = launching.alone([SCRIPT, str(tmp_path), "22", length], TF_USE_LEGACY_KERAS=legacy)
    assert killed.code == -9, killed.text
    ended = launching.alone([SCRIPT, str(tmp_path), "0", length], TF_USE_LEGACY_KERAS=legacy)
    assert ended.code == 0, ended.text
    assert "epoch 1, batch 6, step 21" in ended.text  # the step under way when it was killed comes again
    assert "starts over" not in killed.text + ended.text
    found = json.loads(ended.text.rpartition("ended ")[2])
    assert found == {"least": 3.0, "most": 3.0, "iterations": 45, "step": 45}
