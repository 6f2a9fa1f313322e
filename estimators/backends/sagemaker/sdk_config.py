"""Read the settings of a training job from the SageMaker SDK's configuration files.

Source: SageMaker SDK 2.x, ``sagemaker/config/config.py`` and ``config_schema.py``. There is one file for the machine
and one file for the user. The user's file takes precedence. Environment variables can name other files or folders.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from estimators.job.errors import ConfigurationError

_FILES = (
    ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "/etc/xdg/sagemaker/config.yaml"),
    ("SAGEMAKER_USER_CONFIG_OVERRIDE", "{config}/sagemaker/config.yaml"),
)
_ROLE = ("SageMaker", "TrainingJob", "RoleArn")
_BUCKET = ("SageMaker", "PythonSDK", "Modules", "Session", "DefaultS3Bucket")
_PREFIX = ("SageMaker", "PythonSDK", "Modules", "Session", "DefaultS3ObjectKeyPrefix")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SdkConfig:
    """The content of the configuration files.

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


def load(environment: Mapping[str, str] = os.environ) -> SdkConfig:
    """Read the configuration files that exist.

    Raises:
        ConfigurationError: a file named by a variable does not exist, or a file cannot be read.
    """
    merged: dict[str, Any] = {}
    files = []
    for path in _paths(environment):
        files.append(str(path))
        merged = _merge(merged, _read(path))
    training = _at(merged, _ROLE[:-1])
    return SdkConfig(
        role=_text(merged, _ROLE),
        bucket=_text(merged, _BUCKET),
        prefix=(_text(merged, _PREFIX) or "").strip("/") or None,
        unused=tuple(sorted(set(training) - {_ROLE[-1]})) if isinstance(training, Mapping) else (),
        files=tuple(files),
    )


def _paths(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("HOME") or str(Path.home())
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for variable, default in _FILES:
        named = environment.get(variable)
        if named and named.startswith("s3://"):
            raise ConfigurationError(
                f"{variable}={named}: fleetfit reads the SDK's configuration from local files only."
            )
        path = Path(named or default.format(config=config)).expanduser()
        if path.is_dir():
            path = path / "config.yaml"
        if path.is_file():
            yield path
        elif named:
            raise ConfigurationError(f"{variable}={named}: the file does not exist.")


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            f"{path}, the SageMaker SDK's configuration, cannot be read without PyYAML. Run `pip install pyyaml`."
        ) from None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}, the SageMaker SDK's configuration, cannot be read: {error}") from error
    return dict(content) if isinstance(content, Mapping) else {}


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _text(values: Any, path: tuple[str, ...]) -> str | None:
    value = _at(values, path)
    return str(value) if value else None
