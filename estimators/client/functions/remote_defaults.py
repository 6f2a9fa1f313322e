"""Read the defaults for the arguments of ``@remote`` from the SageMaker SDK's configuration files.

Unknown members of the section ``RemoteFunction`` raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract.names import unknown
from estimators.backends.sagemaker import sdk_config
from estimators.job.errors import ConfigurationError

_SECTION = ("SageMaker", "PythonSDK", "Modules", "RemoteFunction")
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
#: A member that is a structure, and a mapping from the structure's own members to arguments of ``@remote``.
_NETWORK, _NETWORK_MEMBERS = "VpcConfig", {"Subnets": "subnets", "SecurityGroupIds": "security_group_ids"}


def read() -> dict[str, Any]:
    """Return the arguments of ``@remote`` for which the SageMaker SDK's configuration files contain defaults.

    Raises:
        ConfigurationError: a file that an environment variable names is missing, or a file cannot be read, is not YAML,
            or has unknown members of ``RemoteFunction``.
        UnsupportedError: a file exists, but PyYAML is not installed.
    """
    merged: dict[str, Any] = {}
    for place, content in sdk_config.contents():
        merged = sdk_config.merge(merged, _members(place, content))
    found: dict[str, Any] = {}
    network = merged.pop(_NETWORK, None) or {}
    for members, given in ((MEMBERS, merged), (_NETWORK_MEMBERS, network)):
        found.update({members[name]: value for name, value in given.items()})
    return found


def _members(place: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of ``RemoteFunction`` in a configuration file."""
    try:
        members = dict(sdk_config.section(content, _SECTION) or {})
        network = dict(members.get(_NETWORK) or {})
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{place} cannot be read: {error}.") from error
    for known, given in (({*MEMBERS, _NETWORK}, members), (_NETWORK_MEMBERS, network)):
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{place}: {unknown('member of RemoteFunction', str(name), sorted(known))}")
    return members
