"""Real models, of tf_keras and of Keras 3; and real workers, of which one writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launching
import pytest

pytestmark = pytest.mark.tensorflow

HERE = Path(__file__).parent
PASSED = "[0-9.]+ s"


def test_both_kerases(tmp_path: Path) -> None:
    """One after the other: the second is also shown what the first has saved."""
    for flavour in ("tf_keras", "keras"):
        done = launching.alone(
            [str(HERE / "keras_checks.py"), flavour, str(tmp_path / flavour)],
            TF_USE_LEGACY_KERAS=str(int(flavour == "tf_keras")),
        )
        assert done.code == 0, done.text
        assert done.text.count("check_") >= 15, done.text


def on_two_workers(*command: str) -> list[Any]:
    """Run a program on two workers; returns what each prints as JSON."""
    ranks = launching.collective(2, command, TF_USE_LEGACY_KERAS="1")
    assert [rank.code for rank in ranks] == [0, 0], "\n".join(rank.text for rank in ranks)
    return [json.loads(next(line for line in rank.text.splitlines() if line.startswith("{"))) for rank in ranks]


def test_a_loop_without_keras(tmp_path: Path) -> None:
    """The Checkpointer is not told of the cluster: ``distributed.init()`` has been called."""
    command = (str(HERE / "by_hand.py"), str(tmp_path))
    assert on_two_workers(*command) == [{"first": 0, "w": [30 + rank] * 4} for rank in range(2)]
    assert on_two_workers(*command) == [{"first": 3, "w": [60] * 4}] * 2  # rank 0's, on both
    assert not (tmp_path / "1").exists()


def test_two_workers_of_which_one_writes(tmp_path: Path) -> None:
    """MultiWorkerMirroredStrategy with moving averages, whose usual reading is a collective operation."""
    results = on_two_workers(str(HERE / "two_workers.py"), str(tmp_path))
    assert results[0] == results[1], results
    assert results[0]["epochs"] == [1, 2] and results[0]["step"] == 4
    assert not (tmp_path / "1").exists()
