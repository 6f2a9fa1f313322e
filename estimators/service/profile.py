"""The files that tell clients where the endpoint is: an AWS profile, the SDK's configuration, variables.

A profile is a few sections of files that are the user's own (``~/.aws``): only sections of ours are ever replaced, and
everything else stays as it is, byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from estimators.job.errors import ConfigurationError
from estimators.service.identity import ROLE, role_arn
from estimators.service.settings import EndpointFiles, Keys, default_bucket, write_private

_MARK = "# written by fleetfit serve"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SECTION = re.compile(r"^\s*\[\s*([^\]]*?)\s*\]", re.MULTILINE)

#: The variables that name the configuration file of the SDK 2.x and of the 3.x.
_SDK_CONFIG = ("SAGEMAKER_USER_CONFIG_OVERRIDE", "SAGEMAKER_CORE_USER_CONFIG_OVERRIDE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """Where an endpoint is, for its clients.

    Attributes:
        endpoint: Of SageMaker, CloudWatch, STS and IAM.
        s3_endpoint: Of S3.
        region: Its region.
        keys: Its keys.
    """

    endpoint: str
    s3_endpoint: str
    region: str
    keys: Keys

    @property
    def bucket(self) -> str:
        """The default bucket."""
        return default_bucket(self.region)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that AWS's clients read."""
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
        """Everything that a client must set, as variables."""
        sdk = {name: str(place.sdk_config_file) for name in _SDK_CONFIG}
        return {**self.variables, **sdk, "FLEETFIT_DEFAULT_BUCKET": self.bucket}


def job_environment(base: Mapping[str, str], address: Address) -> dict[str, str]:
    """What jobs inherit: this process's environment, in which AWS is the endpoint and nothing else."""
    kept = {name: value for name, value in base.items() if not name.startswith("AWS_")}
    # A profile of the user's would win over some of these.
    no_profile = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return {**kept, **address.variables, **no_profile}


# --- the SDK's configuration ---


def write_sdk_config(place: EndpointFiles, address: Address) -> None:
    """Write the SDK's configuration: it looks for the default bucket with STS, whose address it does not let change."""
    write_private(place.sdk_config_file, sdk_config(address))


def sdk_config(address: Address) -> str:
    """The text of the SDK's configuration file."""
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
    """Write it where the SDK looks by itself, so that ``AWS_PROFILE`` alone is enough.

    That place is the same for every profile, so :func:`remove_sdk_config` takes it away when the endpoint ends.

    Returns:
        Whether it is there: not where the user has a configuration of their own, which is left as it is.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        if path.exists() and not path.read_bytes().startswith(_MARK.encode()):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, _installed(place, address))
    except OSError as error:
        raise ConfigurationError(
            f"the SDK's configuration cannot be written to {path}: {error.strerror}. "
            f"`fleetfit serve --no-sdk-config` does not write this file."
        ) from error
    return True


def remove_sdk_config(place: EndpointFiles, address: Address, path: Path) -> None:
    """Remove what :func:`install_sdk_config` wrote, unless somebody has written something else there since."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == _installed(place, address).encode():
            path.unlink()


def _installed(place: EndpointFiles, address: Address) -> str:
    """The installed text, which names the endpoint: another home's may have been put in its place meanwhile."""
    return sdk_config(address).replace(_MARK, f"{_MARK} of {place.home}, which removes this file when it ends", 1)


def user_sdk_config() -> Path:
    """Where the SDK looks by itself."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "sagemaker" / "config.yaml"


# --- the profile ---


def write_profile(name: str, address: Address) -> tuple[Path, Path]:
    """Write the AWS profile.

    Returns:
        The configuration file and the credentials file.

    Raises:
        ConfigurationError: the user has a profile of that name, or a file cannot be written.
    """
    if not _NAME.fullmatch(name) or name == "default":
        raise ConfigurationError(
            f"{name!r} cannot be a profile's name: use letters, digits, '_', '.' and '-', and not 'default'."
        )
    config = _file("AWS_CONFIG_FILE", "config")
    credentials = _file("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    _replace(
        config,
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
        credentials,
        {
            name: [
                f"aws_access_key_id = {address.keys.access_key}",
                f"aws_secret_access_key = {address.keys.secret_key}",
            ]
        },
    )
    return config, credentials


def _file(variable: str, name: str) -> Path:
    return Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser()


def _replace(path: Path, sections: Mapping[str, list[str]]) -> None:
    """Put sections into a file in the place of ours of that name."""
    try:
        target = Path(os.path.realpath(path))  # it may be a link into somebody's dotfiles
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        for title, lines in sections.items():
            text = _with_section(path, text, title, lines)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(target, text)
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
    """Write everything that a client must set as ``KEY=VALUE`` lines, for the user only.

    The lines are a shell's, which may source them. Values of letters, digits and ``@%+=:,./-_`` stand as they are, so
    that programs that know no quotes (``docker run --env-file``) read the same; others, such as a home with a space,
    are in single quotes.

    Raises:
        ConfigurationError: it cannot be written, or a value has a line end.
    """
    try:
        write_private(path, _variables(place, address))
    except OSError as error:
        raise ConfigurationError(f"--env-file {path} cannot be written: {error.strerror}.") from error


def remove_env_file(path: Path, place: EndpointFiles, address: Address) -> None:
    """Remove what :func:`write_env_file` wrote: who waits for the next endpoint's must not find this one's."""
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
