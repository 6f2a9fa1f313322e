"""An elastic training that is told to end, or loses all who had its state, goes on from what was saved."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import alone

pytestmark = [pytest.mark.tensorflow, pytest.mark.horovod]

SCRIPT = Path(__file__).with_name("elastic_checks.py")
ALONE = {
    "TF_USE_LEGACY_KERAS": "1",
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "1",
}


@pytest.mark.parametrize(
    ("legacy", "at_once"),
    [
        pytest.param("1", "2", marks=pytest.mark.soak),
        ("0", "1"),
        pytest.param("1", "1", marks=pytest.mark.soak),
        pytest.param("0", "2", marks=pytest.mark.soak),
    ],
)
def test_what_was_trained_of_an_epoch_is_saved_and_not_trained_again(legacy: str, at_once: str, tmp_path: Path) -> None:
    chosen = {**ALONE, "TF_USE_LEGACY_KERAS": legacy}
    first = alone([str(SCRIPT), str(tmp_path / "checkpoints"), "end", at_once], **chosen)
    assert first.code == 128 + signal.SIGTERM, first.text
    assert "stopping after SIGTERM: the training is saved" in first.text
    # A worker that comes to others, who have the training's state, and finds that they are gone.
    late = {**chosen, "FLEETFIT_ELASTIC_LATE": "1"}
    second = alone([str(SCRIPT), str(tmp_path / "checkpoints"), "go on", at_once], **late)
    assert second.code == 0, second.text
    assert "trained 2.0 2.0 in 10" in second.text


def test_a_late_worker_that_finds_nobody_and_no_checkpoint_says_so(tmp_path: Path) -> None:
    late = {**ALONE, "FLEETFIT_ELASTIC_LATE": "1"}
    third = alone([str(SCRIPT), str(tmp_path / "nothing"), "go on", "1"], **late)
    assert third.code == 1, third.text
    assert "all workers that had the training's state were lost before another worker had copied it" in third.text
