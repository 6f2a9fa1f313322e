"""Write JSON that every reader accepts. JavaScript, ``jq`` and others reject ``NaN``, which Python's json writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return the JSON text of a value.

    Args:
        value: The value. Numbers that are not finite are written as texts that ``float()`` can read: ``"NaN"``,
            ``"Infinity"``. Objects that JSON cannot represent are written as ``str()`` of the object.
        indent: The indentation, as for :func:`json.dumps`.
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
