"""Parse requests and write responses in AWS's wire protocols: JSON (1.0 and 1.1) and query.

Source: Smithy's specifications of "AWS JSON 1.1" and "AWS Query".
"""

from __future__ import annotations

import dataclasses
import json
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError, malformed
from estimators.service.models import Model
from estimators.service.s3 import documents

#: Target prefix -> botocore's name of the service.
TARGETS = {"SageMaker": "sagemaker", "Logs_20140328": "logs", "GraniteServiceVersion20100801": "cloudwatch"}
#: Name of the service in a signature -> botocore's name of the service.
SIGNED = {"sagemaker": "sagemaker", "logs": "logs", "monitoring": "cloudwatch", "sts": "sts", "iam": "iam"}

_FORM = "application/x-www-form-urlencoded"
#: Maximum number of fields in a form.
_FORM_FIELDS = 10_000
_DEPTH = 20


@dataclass(frozen=True)
class Call:
    """The operation that a request calls, with the request's body.

    Attributes:
        service: botocore's name of the service. None if the endpoint does not have the service.
        operation: The operation's name, as received.
        json_version: The version of the JSON protocol, ``1.0`` or ``1.1``. None for the query protocol.
        body: The body of the request.
    """

    service: str | None
    operation: str
    json_version: str | None
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_call(headers: Mapping[str, str], body: bytes, signed_service: str) -> Call:
    """Determine which operation a request calls.

    Args:
        headers: The headers, as a dict with lower-case names.
        body: The body of the request.
        signed_service: The service in the request's signature.

    Raises:
        ServiceError: the request names no operation, or was signed for a service that does not have the operation.
    """
    target = headers.get("x-amz-target")
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if target is not None:
        prefix, _, operation = target.rpartition(".")
        service = TARGETS.get(prefix)
        version = "1.0" if content_type.endswith("json-1.0") else "1.1"
        call = Call(service, operation, version, body)
    elif content_type == _FORM:
        fields = _form(body)
        call = Call(SIGNED.get(signed_service), fields.get("Action", ""), None, body)
    else:
        raise ServiceError("UnknownOperationException", "the request has neither X-Amz-Target nor a form.", 404)
    if call.service is not None and SIGNED.get(signed_service) != call.service:
        raise ServiceError(
            "InvalidSignatureException",
            f"Credential should be scoped to correct service, not {signed_service!r}.",
            403,
        )
    return call


# --- parameters ---


def parameters(call: Call, model: Model) -> dict[str, Any]:
    """Return the parameters of a call.

    Raises:
        ServiceError: the body cannot be parsed.
    """
    if call.json_version is not None:
        return _json_object(call.body)
    shape = model.inputs[call.operation]
    return {} if shape is None else _structure(model, shape, _tree(_form(call.body)), "", 0)


def _json_object(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(body or b"{}", parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the body is not valid JSON: {str(error)[:200]}.") from None
    if not isinstance(value, dict):
        raise malformed("the body must be a JSON object.")
    return value


def _form(body: bytes) -> dict[str, str]:
    try:
        pairs = urllib.parse.parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            max_num_fields=_FORM_FIELDS,
            errors="strict",
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise malformed(f"the form cannot be read: {str(error)[:200]}.") from None
    return dict(pairs)


@dataclasses.dataclass
class _Field:
    """One part of the field names in a form, with the parts that follow it.

    The name ``Tags.member.1.Key``, for example, consists of the parts ``Tags``, ``member``, ``1`` and ``Key``.

    Attributes:
        text: The value of the field whose name ends with this part, or None if there is no such field.
        inside: The parts that follow this part, by their text.
    """

    text: str | None = None
    inside: dict[str, _Field] = dataclasses.field(default_factory=dict)


def _tree(form: Mapping[str, str]) -> _Field:
    """Split the names of a form's fields into parts, and return the parts as a tree.

    From the tree, parameters can be read in linear time.
    """
    root = _Field()
    for name, text in form.items():
        field = root
        for part in name.split(".", _DEPTH):
            field = field.inside.setdefault(part, _Field())
        field.text = text
    return root


def _structure(model: Model, name: str, field: _Field, key: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member, reference in model.shapes[name]["members"].items():
        location = str(reference.get("locationName", member))
        inner = field.inside.get(location)
        if inner is not None:
            value = _value(model, reference["shape"], inner, f"{key}.{location}" if key else location, depth + 1)
            if value is not None:
                found[member] = value
    return found


def _value(model: Model, name: str, field: _Field, key: str, depth: int) -> Any:
    shape = model.shapes[name]
    kind = shape["type"]
    if kind in ("structure", "list", "map"):
        if not field.inside or depth > _DEPTH:
            return None
        if kind == "structure":
            return _structure(model, name, field, key, depth)
        if kind == "map":
            raise malformed(f"the map {key!r} cannot be sent in a form.")
        member = "" if shape.get("flattened") else str(shape["member"].get("locationName", "member"))
        items = field.inside if not member else field.inside.get(member, _Field()).inside
        order = sorted((number for number in items if _is_number(number)), key=int)
        return [
            _value(model, shape["member"]["shape"], items[number], f"{key}.{member}.{number}", depth + 1)
            for number in order
        ]
    return None if field.text is None else _scalar(kind, field.text, key)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6


def _scalar(kind: str, text: str, key: str) -> Any:
    try:
        if kind in ("integer", "long"):
            return int(text)
        if kind in ("float", "double"):
            return float(text)
        if kind == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if kind == "timestamp":
            from botocore.utils import parse_timestamp

            return parse_timestamp(text).timestamp()
    except (ValueError, KeyError, OverflowError, TypeError, RuntimeError):  # botocore's date parser raises RuntimeError
        raise malformed(f"{key} is {text[:80]!r}, which is not of type {kind}.") from None
    return text


# --- answers ---


def render(call: Call, model: Model, result: Mapping[str, Any]) -> Answer:
    """Return the response that contains an operation's result."""
    rendered = model.render(call.operation, result)
    if call.json_version is not None:
        body = _json(rendered) if model.outputs[call.operation] else b""
        return Answer(200, f"application/x-amz-json-{call.json_version}", body)
    result_node = (model.result_wrappers[call.operation], _xml(model, model.outputs[call.operation], rendered))
    response: documents.Node = (
        f"{call.operation}Response",
        [result_node, ("ResponseMetadata", [("RequestId", str(uuid.uuid4()))])],
    )
    return Answer(200, "text/xml", documents.write(response, str(model.metadata.get("xmlNamespace", ""))))


def _json(value: Mapping[str, Any]) -> bytes:
    """Return a value as strict JSON. NaN and infinity are refused, because only some clients can read them."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def render_error(error: ServiceError, *, json_version: str | None, query_service: bool = False) -> Answer:
    """Return the response that contains an error.

    Args:
        error: The error.
        json_version: The version of the JSON protocol. None for the query protocol.
        query_service: Whether the service has used the query protocol in the past. Clients of such a service read the
            error from a header.
    """
    sender = "Sender" if error.status < 500 else "Receiver"
    if json_version is not None:
        body = json.dumps({"__type": error.code, "message": error.message}).encode()
        headers = {"x-amzn-ErrorType": error.code}
        if query_service:
            headers["x-amzn-query-error"] = f"{error.code};{sender}"
        return Answer(error.status, f"application/x-amz-json-{json_version}", body, headers)
    about = [("Type", sender), ("Code", error.code), ("Message", error.message)]
    node: documents.Node = ("ErrorResponse", [("Error", about), ("RequestId", str(uuid.uuid4()))])
    return Answer(error.status, "text/xml", documents.write(node, namespace=""))


def _xml(model: Model, name: str | None, value: Any) -> str | list[documents.Node]:
    """Return a value as the content of an XML element. The shape ``name`` of the model determines the format.

    Return an empty text if ``name`` is None.
    """
    if name is None:
        return ""
    shape = model.shapes[name]
    if shape["type"] == "structure":
        return [
            (reference.get("locationName", member), _xml(model, reference["shape"], value[member]))
            for member, reference in shape["members"].items()
            if member in value
        ]
    if shape["type"] == "list":
        tag = shape["member"].get("locationName", "member")
        return [(tag, _xml(model, shape["member"]["shape"], item)) for item in value]
    if shape["type"] == "timestamp":
        return documents.time(round(value * 1000) * 1_000_000)
    if shape["type"] == "boolean":
        return "true" if value else "false"
    return str(value)
