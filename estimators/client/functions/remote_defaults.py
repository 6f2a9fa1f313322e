"""Read the defaults for the arguments of ``@remote`` from the SageMaker SDK's configuration files.

The two files are YAML files on this machine or on S3. Values in the user's file replace values in the administrator's
file. As in the SageMaker SDK, a file must exist if an environment variable names it. Unknown members of the section
``RemoteFunction`` raise an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from container.contract.names import unknown
from estimators.job.errors import ConfigurationError, UnsupportedError

#: For the administrator's and the user's file: the environment variable that names a file or folder (on this machine or
#: on S3), and the default path. The last file has precedence.
_PLACES = (
    ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "/etc/xdg/sagemaker/config.yaml"),
    ("SAGEMAKER_USER_CONFIG_OVERRIDE", "~/.config/sagemaker/config.yaml"),
)

#: Members of ``SageMaker.PythonSDK.Modules.RemoteFunction`` -> arguments of ``@remote``.
MEMBERS = {
    "CustomFileFilter": "custom_file_filter",
    "Dependencies": "dependencies",
    "EnableInterContainerTrafficEncryption": "encrypt_inter_container_traffic",
    "EnvironmentVariables": "environment_variables",
    "ImageUri": "image_uri",
    "IncludeLocalWorkDir": "include_local_workdir",
    "InstanceType": "instance_type",
    "JobCondaEnvironment": "job_conda_env",
    "PreExecutionCommands": "pre_execution_commands",
    "PreExecutionScript": "pre_execution_script",
    "RoleArn": "role",
    "S3KmsKeyId": "s3_kms_key",
    "S3RootUri": "s3_root_uri",
    "Tags": "tags",
    "VolumeKmsKeyId": "volume_kms_key",
}
#: The member that contains two arguments, and a mapping from its members to these arguments.
_NETWORK, _NETWORK_MEMBERS = "VpcConfig", {"Subnets": "subnets", "SecurityGroupIds": "security_group_ids"}


def read() -> dict[str, Any]:
    """Return the arguments of ``@remote`` for which the SageMaker SDK's configuration files contain defaults.

    Raises:
        ConfigurationError: a file that a variable names is missing, or a file cannot be read, is not YAML, or has
            unknown members of ``RemoteFunction``.
        UnsupportedError: a file exists, but PyYAML is not installed.
    """
    merged: dict[str, Any] = {}
    for variable, usual in _PLACES:
        named = os.environ.get(variable)
        text = _text(named or usual, variable if named else None)
        if text is not None:
            _merge(merged, _members(named or usual, text))
    found: dict[str, Any] = {}
    network = merged.pop(_NETWORK, None) or {}
    for members, given in ((MEMBERS, merged), (_NETWORK_MEMBERS, network)):
        found.update({members[name]: value for name, value in given.items()})
    return found


def _text(place: str, variable: str | None) -> str | None:
    """Return the text of a configuration file.

    Return None if no environment variable names the file and the file does not exist.

    Args:
        place: The path or S3 URI of the file, or of the folder that contains ``config.yaml``.
        variable: The environment variable that names the file, or None for the default path.
    """
    if place.startswith("s3://"):
        return _text_on_s3(place)
    path = Path(place).expanduser()
    if path.is_dir():
        path = path / "config.yaml"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and variable is None:
            return None
        named = f" (set by {variable})" if variable is not None else ""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"{path}{named} cannot be read: {reason}.") from error


def _text_on_s3(place: str) -> str:
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


def _members(place: str, text: str) -> dict[str, Any]:
    """Return the members of ``RemoteFunction`` in a configuration file."""
    try:
        import yaml
    except ImportError:
        raise UnsupportedError(f"{place} cannot be read without PyYAML. Run `fleetfit install functions`.") from None
    try:
        said = yaml.safe_load(text) or {}
        for part in ("SageMaker", "PythonSDK", "Modules", "RemoteFunction"):
            said = said.get(part) or {}
        members = dict(said)
        network = dict(members.get(_NETWORK) or {})
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{place} cannot be read: {error}.") from error
    for known, given in (({*MEMBERS, _NETWORK}, members), (_NETWORK_MEMBERS, network)):
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{place}: {unknown('member of RemoteFunction', str(name), sorted(known))}")
    return members


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value
