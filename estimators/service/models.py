"""botocore's service models, from the server's side: they validate requests and shape answers.

Only the shapes that the endpoint's operations reach are kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from estimators.job import service_model
from estimators.job.validation import model_pattern
from estimators.service.errors import ServiceError, invalid, malformed

Shape = Mapping[str, Any]

#: How much of an offending value an error shows, in characters.
_SHOWN = 120
_LONGS = {"integer": 31, "long": 63}
#: The last second that has four digits of year.
_LAST_TIME = 253_402_300_799


class Model:
    """One service.

    Attributes:
        name: botocore's name of it.
        metadata: Protocol, target prefix, version.
        operations: The names of all its operations, also of those that the endpoint does not have.
    """

    def __init__(self, name: str, wanted: Iterable[str]) -> None:
        """Load it.

        Args:
            name: botocore's name of the service.
            wanted: The operations whose shapes are kept.
        """
        from botocore.loaders import Loader

        whole = Loader().load_service_model(name, "service-2")
        self.name = name
        self.metadata: Mapping[str, Any] = dict(whole["metadata"])
        self.operations = frozenset(whole["operations"])
        self._inputs: dict[str, str | None] = {}
        self._outputs: dict[str, str | None] = {}
        self.result_wrappers: dict[str, str] = {}
        roots: list[str] = []
        for operation in wanted:
            described = whole["operations"][operation]
            self._inputs[operation] = described.get("input", {}).get("shape")
            self._outputs[operation] = described.get("output", {}).get("shape")
            self.result_wrappers[operation] = described.get("output", {}).get("resultWrapper", f"{operation}Result")
            roots += [shape for shape in (self._inputs[operation], self._outputs[operation]) if shape]
        self.shapes = service_model.reachable(whole["shapes"], roots)
        #: Shapes whose values are answered as they are.
        self._plain = frozenset(
            name for name, shape in self.shapes.items() if shape["type"] in ("string", "boolean", *_LONGS)
        )
        #: Structures of nothing but these, such as log events, of which an answer may have ten thousand.
        self._flat = frozenset(
            name
            for name, shape in self.shapes.items()
            if shape["type"] == "structure"
            and all(reference["shape"] in self._plain for reference in shape["members"].values())
        )

    def input(self, operation: str) -> str | None:
        """Return the name of the shape of an operation's request; None where it has none."""
        return self._inputs[operation]

    # --- requests ---

    def check(self, operation: str, value: Mapping[str, Any], *, spare: frozenset[str] = frozenset()) -> None:
        """Check a request.

        Args:
            operation: The operation.
            value: Its parameters.
            spare: Paths (SageMaker's names, without indices) whose text is checked elsewhere.

        Raises:
            ServiceError: SerializationException for a value of another type, ValidationException in SageMaker's words
                for everything else.
        """
        name = self._inputs[operation]
        if name is None:
            return
        found = list(_Checker(self.shapes, spare).check(value, name, "", ""))
        if found:
            errors = "error" if len(found) == 1 else "errors"
            raise invalid(f"{len(found)} validation {errors} detected: {'; '.join(found[:10])}")

    # --- answers ---

    def render(self, operation: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operation's answer from ``value``: the members that its shape has, times as seconds."""
        name = self._outputs[operation]
        return {} if name is None else self.render_shape(name, value)

    def output(self, operation: str) -> str | None:
        """Return the name of the shape of an operation's answer; None where it has none."""
        return self._outputs[operation]

    def render_shape(self, name: str, value: Any) -> Any:
        """Return a value in the form of a shape, without members that are None or that the shape does not have."""
        shape = self.shapes[name]
        kind = shape["type"]
        if kind == "structure":
            if name in self._flat and value.keys() <= shape["members"].keys() and None not in value.values():
                return value
            return {
                member: value[member]
                if reference["shape"] in self._plain
                else self.render_shape(reference["shape"], value[member])
                for member, reference in shape["members"].items()
                if value.get(member) is not None
            }
        if kind == "list":
            return [self.render_shape(shape["member"]["shape"], item) for item in value]
        if kind == "map":
            return {str(key): self.render_shape(shape["value"]["shape"], item) for key, item in value.items()}
        if kind == "timestamp":
            return round(float(value), 3)
        return value


class _Checker:
    """Walks a value along the shapes."""

    def __init__(self, shapes: Mapping[str, Shape], spare: frozenset[str]) -> None:
        self._shapes = shapes
        self._spare = spare

    def check(self, value: Any, name: str, path: str, where: str) -> Iterator[str]:
        """Yield what is wrong, in SageMaker's words.

        Args:
            value: The value.
            name: The name of its shape.
            path: The members that lead to it, without indices.
            where: The same as SageMaker writes it: ``resourceConfig.instanceCount``.
        """
        shape = self._shapes[name]
        kind: str = shape["type"]
        if not _has_type(value, kind):
            raise malformed(f"the value at '{where or 'the request'}' must be {_TYPES[kind][1]}.")
        if kind == "structure":
            yield from self._structure(value, shape, path, where)
        elif kind == "list":
            yield from _length(value, len(value), shape, where)
            for number, item in enumerate(value, start=1):
                yield from self.check(item, shape["member"]["shape"], f"{path}[]", f"{where}.{number}.member")
        elif kind == "map":
            yield from _length(value, len(value), shape, where)
            for key, item in value.items():
                yield from self.check(key, shape["key"]["shape"], f"{path} key", f"{where}.key")
                yield from self.check(item, shape["value"]["shape"], path, f"{where}.{key[:_SHOWN]}.member")
        elif kind == "string":
            yield from self._string(value, shape, path, where)
        elif kind in _LONGS:
            if abs(value) >= 1 << _LONGS[kind]:
                raise malformed(f"the value at '{where}' is too large for {kind}.")
            yield from _range(value, shape, where)
        elif kind in ("float", "double"):
            yield from _range(value, shape, where)

    def _structure(self, value: Mapping[str, Any], shape: Shape, path: str, where: str) -> Iterator[str]:
        members: Mapping[str, Any] = shape["members"]
        dot = "." if where else ""
        for required in shape.get("required", ()):
            if value.get(required) is None:
                yield _failed(None, f"{where}{dot}{_lower(required)}", "Member must not be null")
        for member, item in value.items():
            if member not in members:
                yield (
                    f"Unknown member '{str(member)[:_SHOWN]}' at '{where or 'the request'}': this endpoint's service "
                    "model does not have it (the model of a newer botocore may have it)"
                )
            elif item is not None:
                inner = f"{path}.{member}" if path else member
                yield from self.check(item, members[member]["shape"], inner, f"{where}{dot}{_lower(member)}")

    def _string(self, value: str, shape: Shape, path: str, where: str) -> Iterator[str]:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise malformed(f"the text at '{where}' is not valid Unicode.") from None
        if path in self._spare:
            return
        if "enum" in shape:
            if value not in shape["enum"]:
                yield _failed(value, where, f"Member must satisfy enum value set: {_set(shape['enum'])}")
            return
        too_long = list(_length(value, len(value), shape, where))
        yield from too_long
        pattern = model_pattern(shape.get("pattern"))
        if not too_long and pattern is not None and pattern.fullmatch(value) is None:
            yield _failed(value, where, f"Member must satisfy regular expression pattern: {shape['pattern']}")


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "structure": ((Mapping,), "a structure"),
    "map": ((Mapping,), "a map"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "a string"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "timestamp": ((int, float), "a time in seconds since the epoch"),
    "blob": ((str,), "a string"),
}


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if kind == "timestamp":
        return isinstance(value, int | float) and 0 <= value <= _LAST_TIME
    return isinstance(value, _TYPES[kind][0])


def _length(value: Any, size: int, shape: Shape, where: str) -> Iterator[str]:
    low, high = shape.get("min", 0), shape.get("max")
    if size < low:
        yield _failed(value, where, f"Member must have length greater than or equal to {low}")
    elif high is not None and size > high:
        yield _failed(value, where, f"Member must have length less than or equal to {high}")


def _range(value: float, shape: Shape, where: str) -> Iterator[str]:
    low, high = shape.get("min"), shape.get("max")
    if low is not None and value < low:
        yield _failed(value, where, f"Member must have value greater than or equal to {low}")
    elif high is not None and value > high:
        yield _failed(value, where, f"Member must have value less than or equal to {high}")


def _failed(value: Any, where: str, constraint: str) -> str:
    text = "null" if value is None else f"'{value}'"
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return f"Value {shown} at '{where}' failed to satisfy constraint: {constraint}"


def _set(values: Iterable[str]) -> str:
    text = ", ".join(values)
    return f"[{text}]" if len(text) <= 2000 else f"[{text[:2000]}…]"


@functools.lru_cache(maxsize=4096)
def _lower(member: str) -> str:
    return member[:1].lower() + member[1:]


def unknown_operation(model: Model | None, name: str) -> ServiceError:
    """Return the error for an operation that the endpoint does not have."""
    if model is not None and name in model.operations:
        return ServiceError(
            "UnknownOperationException",
            f"{model.name}:{name} is an operation of AWS that a fleetfit endpoint does not have: the endpoint "
            "supports only the operations that training clients need.",
        )
    return ServiceError("UnknownOperationException", f"there is no operation {name[:_SHOWN]!r}.")
