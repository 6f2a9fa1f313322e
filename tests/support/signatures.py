"""Write the stub of the estimators: ``python tests/support/signatures.py``. A unit test compares the two."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "estimators" / "client" / "estimator.pyi"

HEAD = """\
# Written by tests/support/signatures.py from the table in estimators/job/arguments.py.
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from container.contract.strategies import Distribution
from estimators.client.estimator_base import EstimatorBase
from estimators.job.request import RunOptions
"""


def text() -> str:
    """Return the stub: for each class its arguments as attributes, and the signature of its constructor."""
    from estimators import Estimator, PyTorch, TensorFlow

    return HEAD + "".join(_class(kind) for kind in (Estimator, TensorFlow, PyTorch))


def _class(kind: type) -> str:
    base = kind.__bases__[0]
    parameters = inspect.signature(kind).parameters.values()
    inherited = inspect.signature(base).parameters if base.__name__ != "EstimatorBase" else {}
    attributes = [
        f"    {one.name}: {one.annotation}"
        for one in sorted(parameters, key=lambda one: one.name)
        if one.name not in inherited and one.name != "hyperparameters"  # a method
    ]
    positional = [_parameter(one) for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = [_parameter(one) for one in parameters if one.kind is one.KEYWORD_ONLY]
    arguments = [f"        {one}," for one in ("self", *positional, "*", *named)]
    head = f"class {kind.__name__}({base.__name__}):"
    return "\n".join(["", head, *attributes, "    def __init__(", *arguments, "    ) -> None: ...", ""])


def _parameter(one: inspect.Parameter) -> str:
    plain = isinstance(one.default, int | str) or (one.default is None and one.annotation.endswith(("None", "Any")))
    default = repr(one.default).replace("'", '"') if plain else "..."
    return f"{one.name}: {one.annotation} = {default}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    STUB.write_text(text(), encoding="utf-8")
