"""Hyperparameters -> command-line arguments, and values -> ``SM_*`` variables, as SageMaker's training toolkit does.

Source: sagemaker-training-toolkit, ``mapping.py`` (``to_cmd_args``, ``to_env_vars``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_cmd_args(hyperparameters: Mapping[str, Any]) -> list[str]:
    """``{"batch-size": 25, "v": True}`` -> ``["--batch-size", "25", "-v", "True"]``, sorted by name.

    A one-letter name gets one dash, and an empty one none; a dict becomes ``k=v,k=v``; None becomes an empty string.
    """
    args: list[str] = []
    for name in sorted(hyperparameters):
        args.append(f"--{name}" if len(name) > 1 else f"-{name}" if name else "")
        args.append(_argument(hyperparameters[name]))
    return args


def to_env_vars(values: Mapping[str, Any]) -> dict[str, str]:
    """``{"model_dir": "/m", "hps": {…}}`` -> ``{"SM_MODEL_DIR": "/m", "SM_HPS": "{…}"}``.

    Strings stay as they are, None becomes an empty string, everything else compact ASCII JSON with sorted keys.
    """
    return {f"SM_{str(name).upper()}": _variable(value) for name, value in values.items()}


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)


def _variable(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
