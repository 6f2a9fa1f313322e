"""Validate requests, and convert results to responses, with botocore's service models.

A model describes each value as a shape. Only the shapes to which the endpoint's operations refer are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from estimators.job import service_model, shape_check
from estimators.service.errors import ServiceError, invalid, malformed

Shape = Mapping[str, Any]

#: Maximum number of characters of an invalid value that an error message shows.
_SHOWN = 120


class Model:
    """The model of one service.

    Attributes:
        name: botocore's name of the service.
        metadata: The protocol, the target prefix and the version of the service.
        operations: The names of all operations of the service, including operations that the endpoint does not have.
        inputs: For each operation, the name of the request's shape, or None if the operation has no parameters.
        outputs: For each operation, the name of the response's shape, or None if the response is empty.
    """

    def __init__(self, name: str, wanted: Iterable[str]) -> None:
        """Load the model of a service.

        Args:
            name: botocore's name of the service.
            wanted: The operations whose shapes are kept.
        """
        from botocore.loaders import Loader

        whole = Loader().load_service_model(name, "service-2")
        self.name = name
        self.metadata: Mapping[str, Any] = dict(whole["metadata"])
        self.operations = frozenset(whole["operations"])
        self.inputs: dict[str, str | None] = {}
        self.outputs: dict[str, str | None] = {}
        self.result_wrappers: dict[str, str] = {}
        roots: list[str] = []
        for operation in wanted:
            described = whole["operations"][operation]
            self.inputs[operation] = described.get("input", {}).get("shape")
            self.outputs[operation] = described.get("output", {}).get("shape")
            self.result_wrappers[operation] = described.get("output", {}).get("resultWrapper", f"{operation}Result")
            roots += [shape for shape in (self.inputs[operation], self.outputs[operation]) if shape]
        self.shapes = service_model.reachable(whole["shapes"], roots)

    # --- requests ---

    def check(self, operation: str, value: Mapping[str, Any], *, spare: frozenset[str] = frozenset()) -> None:
        """Validate a request.

        Args:
            operation: The name of the operation.
            value: The parameters of the request.
            spare: The paths of members that are validated elsewhere. A path consists of SageMaker's names, without
                indices. Here, only the types of these members are checked.

        Raises:
            ServiceError: a value is not valid. If a value cannot be parsed, for example because of its type, the error
                is SerializationException. For all other faults, the error is ValidationException with SageMaker's
                message.
        """
        name = self.inputs[operation]
        if name is None:
            return
        found = [
            _text(problem)
            for problem in shape_check.find(self.shapes, name, value)
            if problem.path not in spare or problem.what in ("type", "unicode")
        ]
        if found:
            errors = "error" if len(found) == 1 else "errors"
            raise invalid(f"{len(found)} validation {errors} detected: {'; '.join(found[:10])}")

    # --- answers ---

    def render(self, operation: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Convert an operation's result to the content of the response.

        Members of the result that the response's shape does not have are omitted. Times are in seconds since the epoch.
        """
        name = self.outputs[operation]
        return {} if name is None else self.render_shape(name, value)

    def render_shape(self, name: str, value: Any) -> Any:
        """Convert a value to the types of a shape. Members that are None or not in the shape are omitted."""
        shape = self.shapes[name]
        kind = shape["type"]
        if kind == "structure":
            return {
                member: self.render_shape(reference["shape"], value[member])
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


#: Messages for values that cannot be parsed.
_MALFORMED = {
    "type": "the value at '{}' must be {}",
    "unicode": "the text at '{}' is not {}",
    "overflow": "the value at '{}' is too large for {}",
}
#: JSON's terms for types that :mod:`estimators.job.shape_check` describes in Python's terms.
_TYPES = {"structure": "a structure", "map": "a map", "boolean": "true or false"}

_CONSTRAINTS = {
    "missing": "Member must not be null",
    "short": "Member must have length greater than or equal to {}",
    "long": "Member must have length less than or equal to {}",
    "small": "Member must have value greater than or equal to {}",
    "large": "Member must have value less than or equal to {}",
    "enum": "Member must satisfy enum value set: {}",
    "pattern": "Member must satisfy regular expression pattern: {}",
}


def _text(problem: shape_check.Problem) -> str:
    """Return SageMaker's error message about an invalid value.

    Raises:
        ServiceError: the value cannot be parsed, for example because of its type. AWS reports this fault with another
            error.
    """
    where = _where(problem.steps)
    if problem.what in _MALFORMED:
        limit = _TYPES.get(problem.kind, problem.limit) if problem.what == "type" else problem.limit
        raise malformed(f"{_MALFORMED[problem.what].format(where or 'the request', limit)}.")
    if problem.what == "unknown":
        return (
            f"Unknown member '{str(problem.value)[:_SHOWN]}' at '{where or 'the request'}': this endpoint's service "
            "model does not have it (the model of a newer botocore may have it)"
        )
    text = "null" if problem.value is None else f"'{problem.value}'"
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    limit = _set(problem.limit) if problem.what == "enum" else problem.limit
    return f"Value {shown} at '{where}' failed to satisfy constraint: {_CONSTRAINTS[problem.what].format(limit)}"


def _where(steps: tuple[tuple[str, Any], ...]) -> str:
    """Return the path of a value in SageMaker's notation, such as ``tags.1.member.key``."""
    names = {
        "member": lambda name: f"{name[:1].lower()}{name[1:]}",
        "item": lambda index: f"{index + 1}.member",
        "key": lambda key: "key",
        "entry": lambda key: f"{key[:_SHOWN]}.member",
    }
    return ".".join(names[step](name) for step, name in steps)


def _set(values: Iterable[str]) -> str:
    text = ", ".join(values)
    return f"[{text}]" if len(text) <= 2000 else f"[{text[:2000]}…]"


def unknown_operation(model: Model | None, name: str) -> ServiceError:
    """Return the error for an operation that the endpoint does not have."""
    if model is not None and name in model.operations:
        return ServiceError(
            "UnknownOperationException",
            f"{model.name}:{name} is an operation of AWS that a fleetfit endpoint does not have: the endpoint "
            "supports only the operations that training clients need.",
        )
    return ServiceError("UnknownOperationException", f"there is no operation {name[:_SHOWN]!r}.")
