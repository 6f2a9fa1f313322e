"""How the hook writes what it tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hooked import hook_module


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        3,
        2.5,
        "plain",
        'a "b" \\ \n é 😀 \ud800',
        {"joined": ["MPI", ()], "exchanges": {"horovod": 0}},
    ],
)
def test_what_is_told_is_json_without_the_module(value: Any) -> None:
    """A script's own ``json.py`` would be imported in its place; under another name the hook does nothing."""
    assert json.loads(hook_module("sitecustomize")._json(value)) == json.loads(json.dumps(value))
