"""The commands of ``python -m container``."""

from __future__ import annotations

import inspect
import re

import pytest

from container import __main__ as commands


def test_the_usage_names_every_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["container", "trian"])
    assert commands.main() == 2
    usage = re.search(r"container ([a-z|]+) …; got 'trian'", capsys.readouterr().err)
    handled = re.findall(r'if command == "(\w+)"', inspect.getsource(commands.main))
    assert usage is not None and sorted(usage[1].split("|")) == sorted(handled)
