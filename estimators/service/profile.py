"""Write the files from which clients read the endpoint's address.

The files are an AWS profile, the SageMaker SDK's configuration, and a file of environment variables.

A profile consists of a few sections in the user's own files (``~/.aws``). fleetfit replaces only sections that it has
written. All other bytes of these files stay unchanged.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from container.contract.frozen import dataclass
from container.system import files
from estimators.job.errors import ConfigurationError
from estimators.service.identity import ROLE, role_arn
from estimators.service.settings import EndpointFiles, Keys, default_bucket

_MARK = "# written by fleetfit serve"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SECTION = re.compile(r"^\s*\[\s*([^\]]*?)\s*\]", re.MULTILINE)

#: The variables that name the configuration files of the SageMaker SDK 2.x and 3.x.
SDK_CONFIG = ("SAGEMAKER_USER_CONFIG_OVERRIDE", "SAGEMAKER_CORE_USER_CONFIG_OVERRIDE")


@dataclass(frozen=True, kw_only=True)
class Address:
    """The addresses and keys of an endpoint, for its clients.

    Attributes:
        endpoint: The URL for SageMaker, CloudWatch, STS and IAM.
        s3_endpoint: The URL for S3.
        region: The endpoint's region.
        keys: The endpoint's keys.
    """

    endpoint: str
    s3_endpoint: str
    region: str
    keys: Keys

    @property
    def bucket(self) -> str:
        """Return the name of the default bucket."""
        return default_bucket(self.region)

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that AWS's clients read."""
        return {
            "AWS_ACCESS_KEY_ID": self.keys.access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.s3_endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def environment(self, place: EndpointFiles) -> dict[str, str]:
        """Return all environment variables that a client must set."""
        sdk = {name: str(place.sdk_config_file) for name in SDK_CONFIG}
        return {**self.variables, **sdk, "FLEETFIT_DEFAULT_BUCKET": self.bucket}


def job_environment(base: Mapping[str, str], address: Address) -> dict[str, str]:
    """Return the environment variables of the endpoint's jobs.

    Variables whose names begin with ``AWS_`` are replaced by settings that refer to the endpoint.

    Args:
        base: The environment variables of this process.
        address: The endpoint's address.
    """
    kept = {name: value for name, value in base.items() if not name.startswith("AWS_")}
    # A profile of the user would override some of these variables. The files with profiles are therefore hidden.
    no_profile = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return {**kept, **address.variables, **no_profile}


# --- the SDK's configuration ---


def write_sdk_config(place: EndpointFiles, address: Address) -> None:
    """Write the SageMaker SDK's configuration with the default bucket.

    Without this setting, the SDK would send a request to AWS's STS to determine the bucket.
    """
    files.replace(place.sdk_config_file, sdk_config(address).encode())


def sdk_config(address: Address) -> str:
    """Return the text of the SageMaker SDK's configuration file."""
    return (
        f"{_MARK}\n"
        "SchemaVersion: '1.0'\n"
        "SageMaker:\n"
        "  PythonSDK:\n"
        "    Modules:\n"
        "      Session:\n"
        f"        DefaultS3Bucket: {address.bucket}\n"
        "      TelemetryOptOut: true\n"
        "  TrainingJob:\n"
        f"    RoleArn: {role_arn(ROLE)}\n"
    )


def install_sdk_config(place: EndpointFiles, address: Address, path: Path) -> bool:
    """Write the configuration to the SageMaker SDK's default location, so that clients need to set only
    ``AWS_PROFILE``.

    The SDK reads this file for all profiles, including those of real AWS accounts. Therefore
    :func:`remove_sdk_config` removes the file when the endpoint stops.

    Returns:
        Whether the file was written. A configuration file of the user is not changed.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        if path.exists() and not path.read_bytes().startswith(_MARK.encode()):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, _installed(place, address).encode())
    except OSError as error:
        raise ConfigurationError(
            f"the SDK's configuration cannot be written to {path}: {error.strerror}. "
            f"`fleetfit serve --no-sdk-config` does not write this file."
        ) from error
    return True


def remove_sdk_config(place: EndpointFiles, address: Address, path: Path) -> None:
    """Remove the file that :func:`install_sdk_config` has written. Keep the file if it was changed meanwhile."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == _installed(place, address).encode():
            path.unlink()


def _installed(place: EndpointFiles, address: Address) -> str:
    """Return the text that :func:`install_sdk_config` writes for this endpoint.

    The text names the endpoint's home. If an endpoint of a different home has replaced the file, the file contains a
    different text, and :func:`remove_sdk_config` keeps the file.
    """
    return sdk_config(address).replace(_MARK, f"{_MARK} of {place.home}, which removes this file when it ends", 1)


# --- the profile ---


def write_profile(name: str, address: Address) -> None:
    """Write an AWS profile with the endpoint's addresses and keys.

    Raises:
        ConfigurationError: the name is not valid, a profile of this name exists that fleetfit has not written, or a
            file cannot be written.
    """
    if not _NAME.fullmatch(name) or name == "default":
        raise ConfigurationError(
            f"{name!r} cannot be a profile's name: use letters, digits, '_', '.' and '-', and not 'default'."
        )
    _replace(
        _file("AWS_CONFIG_FILE", "config"),
        {
            f"profile {name}": [
                f"region = {address.region}",
                f"endpoint_url = {address.endpoint}",
                f"services = {name}",
            ],
            f"services {name}": ["s3 =", f"  endpoint_url = {address.s3_endpoint}"],
        },
    )
    _replace(
        _file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        {
            name: [
                f"aws_access_key_id = {address.keys.access_key}",
                f"aws_secret_access_key = {address.keys.secret_key}",
            ]
        },
    )


def _file(variable: str, name: str) -> Path:
    return Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser()


def _replace(path: Path, sections: Mapping[str, list[str]]) -> None:
    """Write sections into a file. If fleetfit has written sections with the same names before, replace them.

    Raises:
        ConfigurationError: a section of the same name belongs to the user, or the file cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))  # the file may be a link, for example into a dotfiles repository
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        for title, lines in sections.items():
            text = _with_section(path, text, title, lines)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(target, text.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the profile cannot be written to {path}: {error}. `fleetfit serve --no-profile` writes no profile."
        ) from error


def _with_section(path: Path, text: str, title: str, lines: list[str]) -> str:
    section = "\n".join([f"[{title}]", _MARK, *lines]) + "\n"
    starts = [match for match in _SECTION.finditer(text) if " ".join(match[1].split()) == title]
    if not starts:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}{section}"
    start = starts[0].start()
    following = _SECTION.search(text, starts[0].end())
    end = following.start() if following is not None else len(text)
    if _MARK not in text[start:end]:
        raise ConfigurationError(
            f"{path} has a profile {title!r} that is not fleetfit's: choose another name with --profile."
        )
    gap = "\n" if following is not None else ""
    return f"{text[:start]}{section}{gap}{text[end:]}"


# --- variables ---


def write_env_file(path: Path, place: EndpointFiles, address: Address) -> None:
    """Write all variables that a client must set into a file that only the user can read, as ``KEY=VALUE`` lines.

    A shell can source the file. Values that contain only letters, digits and ``@%+=:,./-_`` are not quoted. Therefore
    programs without support for quotes (``docker run --env-file``) read the same values. Other values, such as a path
    with a space, are in single quotes.

    Raises:
        ConfigurationError: the file cannot be written, or a value contains a line break.
    """
    try:
        files.replace(path, _variables(place, address).encode())
    except OSError as error:
        raise ConfigurationError(f"--env-file {path} cannot be written: {error.strerror}.") from error


def remove_env_file(path: Path, place: EndpointFiles, address: Address) -> None:
    """Remove the file that :func:`write_env_file` has written. Keep the file if it was changed meanwhile.

    Scripts that wait for the file then wait for the next endpoint.
    """
    with contextlib.suppress(OSError):
        if path.read_bytes() == _variables(place, address).encode():
            path.unlink()


def _variables(place: EndpointFiles, address: Address) -> str:
    return "".join(f"{name}={_quoted(name, value)}\n" for name, value in address.environment(place).items())


def _quoted(name: str, value: str) -> str:
    if "\n" in value or "\r" in value:
        raise ConfigurationError(
            f"--env-file: the value of {name} contains a line break: {value!r}. Set FLEETFIT_HOME to a folder whose "
            "path contains no line break."
        )
    return shlex.quote(value)
