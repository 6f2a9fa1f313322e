"""Build the JSON schema of job files. With this schema, editors complete and check the YAML of a job file.

The schema is built from the types and tables that fleetfit itself uses to check job files. The schema is less strict:
every file that fleetfit accepts matches the schema, but a file that matches the schema may still be wrong.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from container.contract.strategies import FRAMEWORKS, STRATEGIES
from estimators.client.jobfiles.building import CHANNEL_OPTIONS, argument_names
from estimators.job.arguments import BY_NAME
from estimators.job.failure_policy import FailurePolicy
from estimators.job.inputs import FileSystemInput, TrainingInput
from estimators.job.request import RunOptions
from estimators.job.settings import Settings
from estimators.job.spot_market import SpotMarket

#: A reference to an environment variable.
_VARIABLE = {"type": "string", "pattern": r"\$\{env:[A-Za-z_][A-Za-z0-9_]*\}"}
_PLAIN: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ANY_OBJECT = {"type": "object"}
_INPUT_MODES = ("File", "Pipe", "FastFile")


def schema() -> dict[str, Any]:
    """Return the schema of job files. The schema follows draft 7 of JSON Schema, which editors support."""
    properties = {name: _described(name, _argument(name)) for name in argument_names()}
    properties["framework"] = {"enum": list(FRAMEWORKS), "description": "the framework of the script"}
    properties["inputs"] = {
        "description": "the channels: each is a path, a URI or an object",
        "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": _channel()}],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "fleetfit job file",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _described(name: str, said: dict[str, Any]) -> dict[str, Any]:
    note = BY_NAME[name].note
    return {**said, "description": note} if note else said


def _argument(name: str) -> dict[str, Any]:
    if name == "distribution":
        return _distribution()
    if name == "run_options":
        return _run_options()
    if name == "input_mode":
        return _or_variable({"enum": list(_INPUT_MODES)})
    if name in ("environment", "hyperparameters"):
        value = {"type": "string"} if name == "environment" else {}
        return _or_null({"type": "object", "additionalProperties": value})
    if name == "tags":
        return _or_null({"type": ["array", "object"]})
    if name == "metric_definitions":
        item = {"type": "object", "properties": {"Name": {"type": "string"}, "Regex": {"type": "string"}},
                "required": ["Name", "Regex"], "additionalProperties": False}  # fmt: skip
        return _or_null({"type": "array", "items": item})
    return _or_null(_of_type(typing.get_type_hints(Settings)[name]))


def _of_type(hint: Any) -> dict[str, Any]:
    """Return the schema for the values that a type annotation allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        plain = [_PLAIN[part] for part in parts if part in _PLAIN]
        if len(plain) == len([part for part in parts if part is not type(None)]):
            return _or_variable({"type": plain if len(plain) > 1 else plain[0]})
        kinds = [_of_type(part) for part in parts if part is not type(None) and typing.get_origin(part) is not None]
        named = [{"type": _PLAIN[part]} for part in parts if part in _PLAIN]
        return {"anyOf": [*kinds, *named]} if len(kinds) + len(named) > 1 else (kinds or named or [{}])[0]
    if hint in _PLAIN:
        return _or_variable({"type": _PLAIN[hint]})
    if origin is tuple:
        return {"type": "array"} if Ellipsis not in parts else {"type": "array", "items": _of_type(parts[0])}
    if origin is typing.Literal:
        return _or_variable({"enum": list(parts)})
    if origin is not None and issubclass(origin, Mapping):
        return dict(_ANY_OBJECT)
    return {}


def _or_variable(said: dict[str, Any]) -> dict[str, Any]:
    if said.get("type") == "string":
        return said
    return {"anyOf": [said, _VARIABLE]}


def _or_null(said: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [said, {"type": "null"}]}


def _object_of(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {
        "type": "object",
        "properties": {field.name: _or_null(_of_type(hints[field.name])) for field in dataclasses.fields(cls)},
        "additionalProperties": False,
    }


def _distribution() -> dict[str, Any]:
    strategies: dict[str, Any] = {}
    for strategy in STRATEGIES:
        options = _object_of(strategy)
        options["properties"]["enabled"] = {"type": "boolean"}
        options["required"] = ["enabled"]
        # Also accept options that only earlier images from AWS support.
        options["properties"].update({name: {} for name in strategy.former})
        for key in (strategy.key, *strategy.aliases):
            strategies[key] = options
    return _or_null({"type": "object", "properties": strategies, "additionalProperties": False})


def _run_options() -> dict[str, Any]:
    said = _object_of(RunOptions)
    said["properties"]["failure_policy"] = _object_of(FailurePolicy)
    said["properties"]["spot_market"] = _or_null(_object_of(SpotMarket))
    said["properties"]["faults"] = {"type": "array", "items": {"type": "object", "required": ["do"]}}
    return _or_null(said)


def _channel() -> dict[str, Any]:
    forms: list[dict[str, Any]] = [{"type": "string"}]
    for cls in (TrainingInput, FileSystemInput):
        hints = typing.get_type_hints(cls.__init__)
        names = CHANNEL_OPTIONS[cls.__name__]
        properties: dict[str, Any] = {name: _or_null(_of_type(hints[name])) for name in names}
        properties.update({"s3_data": {"type": "string"}} if "s3_data" in names else {})
        if "shuffle_config" in names:
            seed = {"type": "object", "properties": {"seed": {"type": "integer"}}, "required": ["seed"]}
            properties["shuffle_config"] = {**seed, "additionalProperties": False}
        forms.append({"type": "object", "properties": properties, "required": [names[0]],
                      "additionalProperties": False})  # fmt: skip
    return {"anyOf": forms}
