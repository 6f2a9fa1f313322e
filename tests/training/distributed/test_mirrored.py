"""One process that trains on several devices of its host: virtual ones of the processor here."""

from __future__ import annotations

import json
from pathlib import Path

import launching
import pytest

from container.contract.strategies import Mirrored

pytestmark = pytest.mark.tensorflow


@pytest.mark.landing
@pytest.mark.parametrize("legacy", [pytest.param("1", marks=pytest.mark.soak), "0"], ids=["tf_keras", "keras 3"])
def test_four_devices_train_as_one_process(legacy: str, tmp_path: Path) -> None:
    ended = launching.alone(
        [str(Path(__file__).with_name("mirrored_checks.py")), str(tmp_path)],
        TF_USE_LEGACY_KERAS=legacy,
        SM_FRAMEWORK_PARAMS=json.dumps(Mirrored(devices=4).to_hyperparameters()),
    )
    assert ended.code == 0 and "all passed" in ended.text, ended.text
