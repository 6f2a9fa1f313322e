"""Write a job file from the arguments of a command line, or from a job's record."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.strategies import Distribution
from container.contract.texts import map_texts
from estimators.client.jobfiles import reading
from estimators.client.jobfiles.building import argument_names, places_of_paths
from estimators.job.errors import ConfigurationError
from estimators.job.request import InputChannel, RunOptions, TrainingJobSpec
from estimators.job.secrets import MASK, looks_secret, mask_argv, mask_value
from estimators.job.settings import Settings
from estimators.records.record import JobRecord

#: Arguments that are written first, in this order. All other arguments follow.
_ORDER = (
    "framework", "entry_point", "source_dir", "dependencies", "image_uri", "hyperparameters", "arguments",
    "environment", "distribution", "instance_type", "instance_count", "inputs", "input_mode", "output_path",
    "checkpoint_s3_uri",
)  # fmt: skip
_LINE = 120


def save(path: str, values: Mapping[str, Any]) -> list[str]:
    """Write a new job file.

    Args:
        path: The path of the new file.
        values: The arguments by their names. Relative paths refer to the working directory.

    Returns:
        The names of environment variables. In the file, references to these variables replace values that look like
        secrets.

    Raises:
        ConfigurationError: the file exists, or cannot be written.
    """
    folder = Path(path).absolute().parent
    kept, variables = without_secrets(_relative_to(folder, values))
    text = render(kept)
    try:
        with open(path, "x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                os.unlink(path)  # leave no partial file when the disk is full
                raise
    except FileExistsError:
        raise ConfigurationError(f"--save {path}: the file exists already. Use another name, or remove it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"--save {path}: the job file cannot be written: {reason}.") from None
    return variables


def render(values: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return arguments as the text of a job file.

    Args:
        values: The arguments by their names.
        comments: The comment lines before the arguments.

    Raises:
        ConfigurationError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigurationError("job files need PyYAML: `fleetfit install jobfiles`.") from None

    class Dumper(yaml.SafeDumper):
        """A YAML writer that writes no aliases.

        Texts are quoted if a reader of YAML 1.1 or YAML 1.2 would otherwise read another type, such as a number.
        """

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        # Quote texts with rare line break characters, which YAML would read as blanks.
        quoted = not isinstance(reading.plain(value), str) or not value.replace("\n", "").isprintable()
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)

    Dumper.add_representer(str, text)
    names = [*(name for name in _ORDER if name in values), *(name for name in values if name not in _ORDER)]
    body = yaml.dump(
        {name: values[name] for name in names}, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_LINE
    )
    return "".join(f"# {line}\n" for line in comments) + str(body)


def without_secrets(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replace secrets in arguments by references to environment variables. Also return the variables' names.

    Each value that looks like a secret is replaced by ``${env:NAME}``. If a text already contains ``${env:…}``, it is
    escaped as ``$${env:…}``, so that it stays a text.
    """
    variables: dict[str, Any] = {}  # name of a variable -> the secret value that it replaces

    def stand_in(name: str, value: Any) -> str:
        number = 1
        while variables.setdefault(name if number == 1 else f"{name}_{number}", value) != value:
            number += 1
        return name if number == 1 else f"{name}_{number}"

    kept = _escaped(dict(values))
    for name in ("hyperparameters", "environment"):
        given = values.get(name)
        if not isinstance(given, Mapping):
            continue
        kept[name] = {}
        for key, value in given.items():
            # Replace the whole value, even if only a part of it is secret, because the rest alone is useless.
            secret = looks_secret(key) or mask_value(key, value) != value
            if not secret or value in (None, ""):
                kept[name][key] = _escaped(value)
                continue
            variable = stand_in(key if name == "environment" else _variable(key), value)
            kept[name][key] = f"${{env:{variable}}}"
    option = ""  # the last option seen: the words that follow are its values
    words = values.get("arguments") or ()
    for place, (word, shown) in enumerate(zip(words, mask_argv(words), strict=True)):
        name, _, _ = word.partition("=")
        if word.startswith("-") and (shown == word or shown == f"{name}={MASK}"):
            option = name
        if shown != word:
            begun = f"{name}=" if shown == f"{name}={MASK}" else ""
            wanted = _variable(option.strip("-") or "argument")
            kept["arguments"][place] = f"{begun}${{env:{stand_in(wanted, word[len(begun) :])}}}"
    return kept, list(variables)


def _variable(name: str) -> str:
    """Return the name of the environment variable that replaces the value of a hyperparameter or option."""
    variable = re.sub(r"\W", "_", name, flags=re.ASCII).upper()
    return variable if not variable[:1].isdigit() else f"_{variable}"


def _escaped(value: Any) -> Any:
    return map_texts(value, lambda text: reading.VARIABLE.sub(r"$\g<0>", text))


def _relative_to(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    moved = copy.deepcopy(dict(values))
    for holder, key in places_of_paths(moved):
        holder[key] = _moved(folder, holder[key])
    entry = moved.get("entry_point")
    if isinstance(entry, str) and not moved.get("source_dir") and os.path.exists(entry):
        moved["entry_point"] = _moved(folder, entry)
    return moved


def _moved(folder: Path, location: Any) -> Any:
    """Return a path relative to the folder of the job file.

    URIs, paths that begin with ``~``, and absolute paths outside of this folder are returned unchanged.
    """
    if not isinstance(location, str) or "://" in location or location.startswith("~"):
        return location
    if os.path.isabs(location) and folder not in (Path(location), *Path(location).parents):
        return location
    return os.path.relpath(os.path.abspath(location), folder)


def of_record(record: JobRecord) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments and the comment lines of a job file with which a recorded job can be started again.

    Args:
        record: The job's record.

    Raises:
        ConfigurationError: the entry point was a function, which a job file cannot contain.
    """
    from estimators.client.attaching import settings_of
    from estimators.client.functions import values as functions
    from estimators.records.provenance import read

    if functions.description_of(record) is not None:
        raise ConfigurationError(
            f"training job {record.name!r} ran a function, which a job file cannot contain. `fleetfit describe "
            f"{record.name} --reproduce python` prints the function's source code."
        )
    spec = TrainingJobSpec.from_request(record.read_request())
    values = of_settings(settings_of(record, passes_model_dir=True))
    values.pop("role", None)  # the role is a placeholder, or will be found in the same way again
    comments = [f"The job {record.name}."]
    code = read(record.path).get("code")
    if code and values.get("source_dir") == str(record.source_dir):
        # `code` is the original source folder, or the original script if the job had no source folder.
        if os.path.isfile(code):
            del values["source_dir"]
            values["entry_point"] = code
        else:
            values["source_dir"] = code
        comments.append(
            f"The job's own copy of the code is in {record.source_dir}. The path below is the original place of the "
            "code."
        )
    channels = {channel.name: _channel(channel) for channel in spec.inputs}
    if channels:
        values["inputs"] = channels
    kept, variables = without_secrets(values)
    if variables:
        comments.append(f"Set these variables first (their values looked secret): {', '.join(variables)}.")
    return kept, comments


def of_settings(settings: Settings) -> dict[str, Any]:
    """Return an estimator's arguments that differ from their defaults, as data that YAML can represent."""
    names = argument_names()
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name in names and value != default and field.name != "model_dir":
            values[field.name] = _plain(value)
    # A job file without model_dir means model_dir=False, so only other values are written.
    if settings.model_dir is not False:
        values["model_dir"] = settings.model_dir
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return value.to_dict()
    if isinstance(value, RunOptions):
        default = rules.to_dict(RunOptions())
        return {name: _plain(item) for name, item in rules.to_dict(value).items() if item != default[name]}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.to_request() if hasattr(value, "to_request") else value


def _channel(channel: InputChannel) -> Any:
    """Return a channel for a job file: a path or URI if the channel has no options, and otherwise a mapping."""
    said: dict[str, Any]
    if channel.source.file_system is not None:
        system = channel.source.file_system
        said = {
            "file_system_id": system.file_system_id,
            "file_system_type": system.file_system_type,
            "directory_path": system.directory_path,
            "file_system_access_mode": system.access_mode,
            "content_type": channel.content_type,
        }
        return {name: value for name, value in said.items() if value is not None}
    data = channel.source.s3
    if data is None:
        return {}
    said = {
        "s3_data": data.uri,
        "distribution": data.distribution if data.distribution != "FullyReplicated" else None,
        "compression": channel.compression,
        "content_type": channel.content_type,
        "record_wrapping": channel.record_wrapper,
        "s3_data_type": data.data_type if data.data_type != "S3Prefix" else None,
        "instance_groups": list(data.instance_groups) or None,
        "input_mode": channel.input_mode,
        "attribute_names": list(data.attribute_names) or None,
        "shuffle_config": {"seed": channel.shuffle.seed} if channel.shuffle is not None else None,
    }
    given = {name: value for name, value in said.items() if value is not None}
    return data.uri if list(given) == ["s3_data"] else given
