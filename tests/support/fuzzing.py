"""Requests out of botocore's service models, right and wrong, for hypothesis."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from estimators.service.models import Model

#: Texts that patterns take, that lead out of folders, that are long, that are not text.
TEXTS = (
    "a", "job-1", "known", "", "-", "../../etc/passwd", "a/b", "\0", "\ud800", "é" * 40, "x" * 5000, "NaN", "None",
    "arn:aws:iam::000000000000:role/me", "arn:aws:sagemaker:us-east-1:000000000000:training-job/known",
    "s3://bucket/key", "s3://../../x", "file:///etc/passwd", "/aws/sagemaker/TrainingJobs", "known/algo-1-1",
    "f/" + "0" * 56, "b/9", "train.py", "true", "ml.m5.xlarge", "local_process", "local_fake", "File", "Pipe", "%s%n",
    "/aws/sagemaker/TrainingJobs:*", "Average", "loss", "(", "(a+)+$", "<a>&amp;", "1", "ZmxlZXRmaXQ6MQ==",
)  # fmt: skip

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=8,
)


@functools.cache
def requests(model: Model, operation: str) -> st.SearchStrategy[Any]:
    """Parameters of an operation: mostly as the model says, with something wrong now and then."""
    name = model.inputs[operation]
    return st.just({}) if name is None else _shape(model, name, 0)


@functools.cache
def _shape(model: Model, name: str, depth: int) -> st.SearchStrategy[Any]:
    shape = model.shapes[name]
    right = _right(model, shape, depth)
    return right if depth == 0 else st.one_of(*[right] * 12, _ANYTHING)


def _right(model: Model, shape: Any, depth: int) -> st.SearchStrategy[Any]:
    kind = shape["type"]
    if kind == "structure":
        members = shape["members"]
        required = set(shape.get("required", ()))
        inner = {member: st.deferred(_later(model, members[member]["shape"], depth)) for member in members}
        needed = {member: value for member, value in inner.items() if member in required}
        free = {member: value for member, value in inner.items() if member not in required}
        chosen = st.fixed_dictionaries(needed, optional=free) if depth < 3 else st.fixed_dictionaries(needed)
        return st.one_of(*[chosen] * 9, st.dictionaries(st.sampled_from([*members, "Nonsense"]), _ANYTHING, max_size=4))
    if kind == "list":
        return st.lists(st.deferred(_later(model, shape["member"]["shape"], depth)), max_size=3)
    if kind == "map":
        keys, values = shape["key"]["shape"], shape["value"]["shape"]
        return st.dictionaries(_texts(model.shapes[keys]), st.deferred(_later(model, values, depth)), max_size=3)
    if kind == "string":
        return _texts(shape)
    if kind == "boolean":
        return st.booleans()
    if kind in ("integer", "long"):
        return st.integers(shape.get("min", -5), min(shape.get("max", 1 << 40), 1 << 40)) | st.integers()
    if kind in ("float", "double"):
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.floats(0, 2e9) | st.integers(0, 2_000_000_000)


def _later(model: Model, name: str, depth: int) -> Any:
    return lambda: _shape(model, name, min(depth + 1, 3))


def _texts(shape: Any) -> st.SearchStrategy[str]:
    if "enum" in shape:
        return st.sampled_from(shape["enum"]) | st.sampled_from(TEXTS)
    return st.sampled_from(TEXTS) | st.text(max_size=shape.get("max", 80) if shape.get("max", 80) < 200 else 80)
