"""Read the SageMaker SDK's configuration files: the settings of training jobs, and the defaults of ``@remote``.

Source: SageMaker SDK 2.x, ``sagemaker/config/config.py`` and ``config_schema.py``. There is one file for the machine
and one file for the user, on this machine or on S3. Values in the user's file replace values in the machine's file.
Environment variables can name other files or folders. A file must exist if a variable names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from estimators.job.errors import ConfigurationError, UnsupportedError

_ROLE = ("SageMaker", "TrainingJob", "RoleArn")
_BUCKET = ("SageMaker", "PythonSDK", "Modules", "Session", "DefaultS3Bucket")
_PREFIX = ("SageMaker", "PythonSDK", "Modules", "Session", "DefaultS3ObjectKeyPrefix")


@dataclass(frozen=True, kw_only=True)
class SdkConfig:
    """The settings of training jobs in the configuration files.

    Attributes:
        role: The ARN of the role for training jobs.
        bucket: The default bucket.
        prefix: The prefix of all keys in the bucket.
        unused: The names of other settings for training jobs in the files. fleetfit ignores these settings.
        files: The files that were read.
    """

    role: str | None = None
    bucket: str | None = None
    prefix: str | None = None
    unused: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def load() -> SdkConfig:
    """Read the settings of training jobs from the configuration files that exist.

    Raises:
        ConfigurationError: a file that a variable names does not exist, or a file cannot be read.
        UnsupportedError: a file exists, but PyYAML is not installed.
    """
    merged: dict[str, Any] = {}
    files = []
    for place, content in contents():
        files.append(place)
        merged = merge(merged, content)
    training = section(merged, _ROLE[:-1])
    return SdkConfig(
        role=_text(merged, _ROLE),
        bucket=_text(merged, _BUCKET),
        prefix=(_text(merged, _PREFIX) or "").strip("/") or None,
        unused=tuple(sorted(set(training) - {_ROLE[-1]})) if isinstance(training, Mapping) else (),
        files=tuple(files),
    )


def user_file() -> Path:
    """Return the default path of the user's configuration file."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "sagemaker" / "config.yaml"


def contents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path or S3 URI and the content of each configuration file that exists. The user's file is the last one.

    Raises:
        ConfigurationError: a file that a variable names does not exist, or a file cannot be read.
        UnsupportedError: a file exists, but PyYAML is not installed.
    """
    places = (
        ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", Path("/etc/xdg/sagemaker/config.yaml")),
        ("SAGEMAKER_USER_CONFIG_OVERRIDE", user_file()),
    )
    for variable, usual in places:
        named = os.environ.get(variable)
        if named and named.startswith("s3://"):
            yield named, _parsed(named, _read_from_s3(named))
            continue
        path = Path(named or usual).expanduser()
        if path.is_dir():
            path = path / "config.yaml"
        if named or path.exists():
            yield str(path), _parsed(str(path), _read(path, variable if named else None))


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the values of two mappings.

    A value in ``above`` replaces the value with the same name in ``below``. If both values are mappings, the two
    mappings are merged in the same way.
    """
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def section(content: Any, path: tuple[str, ...]) -> Any:
    """Return a value in the content of a file. Return None if the content does not have the value.

    Args:
        content: The content.
        path: The names of the sections, from the outermost, and the name of the value.
    """
    for name in path:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


def _text(content: Any, path: tuple[str, ...]) -> str | None:
    value = section(content, path)
    return str(value) if value else None


def _read(path: Path, variable: str | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        named = f" (set by {variable})" if variable is not None else ""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"{path}{named} cannot be read: {reason}.") from error


def _read_from_s3(place: str) -> str:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = place.removeprefix("s3://").partition("/")
    if not key.endswith((".yaml", ".yml")):
        key = f"{key.rstrip('/')}/config.yaml".lstrip("/")
    try:
        client = (boto3.DEFAULT_SESSION or boto3.session.Session()).client("s3")
        body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body.decode("utf-8")
    except (BotoCoreError, ClientError, ValueError) as error:
        raise ConfigurationError(f"s3://{bucket}/{key} cannot be read: {error}.") from error


def _parsed(place: str, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(f"{place} cannot be read without PyYAML. Run `fleetfit install functions`.") from None
    try:
        return dict(yaml.safe_load(text) or {})
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{place} cannot be read: {error}.") from error
