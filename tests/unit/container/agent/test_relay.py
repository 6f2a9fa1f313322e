"""The relay's command line."""

from __future__ import annotations

import pytest

from container.agent import relay


@pytest.mark.parametrize("words", [[], ["--fd", "3"], ["--to", "a:1", "--fd", "3"], ["--fd", "x", "--to", "a:1"]])
def test_a_wrong_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert relay.main(words) == 2
    assert "usage: agent relay" in capsys.readouterr().err
