"""Records that are parsed many at once, in one process."""

from __future__ import annotations

from pathlib import Path

import launching
import pytest

CHECKS = Path(__file__).with_name("parsing_checks.py")


@pytest.mark.tensorflow
def test_parsing() -> None:
    ended = launching.alone([str(CHECKS)], TF_USE_LEGACY_KERAS="1")
    assert ended.code == 0, ended.text
    assert ended.text.count(" ok\n") == CHECKS.read_text().count("\ndef check_")
