"""Which framework ``init()`` joins with, where the script does not say."""

from __future__ import annotations

import sys
import types

import pytest

from container import distributed

TORCH = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"), "1")


@pytest.mark.parametrize(
    ("environment", "imported", "expected"),
    [
        ({}, (), "tensorflow"),
        ({}, ("torch",), "torch"),
        ({}, ("torch", "tensorflow"), "tensorflow"),
        (TORCH, (), "torch"),
        # A worker of an elastic job learns its rank as it joins.
        ({"HOROVOD_ELASTIC": "1"}, (), "tensorflow"),
        ({"HOROVOD_ELASTIC": "1"}, ("torch",), "torch"),
        ({"HOROVOD_ELASTIC": "1"}, ("torch", "tensorflow"), "tensorflow"),
    ],
)
def test_the_strategys_or_what_is_imported(
    environment: dict[str, str], imported: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SM_FRAMEWORK_PARAMS", *TORCH, "TF_CONFIG", "HOROVOD_ELASTIC", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert distributed._framework() == expected
