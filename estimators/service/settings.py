"""Where an endpoint is, its keys, and its files below ``$FLEETFIT_HOME/service/``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import string
from pathlib import Path

from estimators.job.errors import ConfigurationError
from estimators.records.record import jobs_folder

#: The account that jobs and buckets seem to belong to.
ACCOUNT = "000000000000"

DEFAULT_REGION = "us-east-1"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_LETTERS = string.ascii_uppercase + string.digits


@dataclasses.dataclass(frozen=True)
class Keys:
    """What every request must be signed with."""

    access_key: str
    secret_key: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class EndpointFiles:
    """The files of a home's endpoint.

    Attributes:
        home: ``$FLEETFIT_HOME``.
    """

    home: Path

    @classmethod
    def of(cls, home: str | os.PathLike[str] | None = None) -> EndpointFiles:
        """The place of a home; default: ``$FLEETFIT_HOME``."""
        return cls(jobs_folder(os.fspath(home) if home is not None else None).parent)

    @property
    def folder(self) -> Path:
        """The endpoint's own folder."""
        return self.home / "service"

    @property
    def keys_file(self) -> Path:
        """The keys, for the user only."""
        return self.folder / "keys.json"

    @property
    def lock_file(self) -> Path:
        """Held while an endpoint of this home runs."""
        return self.folder / "lock"

    @property
    def storage_lock_file(self) -> Path:
        """Held while its S3 server runs, which may be longer."""
        return self.folder / "s3.lock"

    @property
    def storage_file(self) -> Path:
        """Where that S3 server is."""
        return self.folder / "s3.json"

    @property
    def sdk_config_file(self) -> Path:
        """The configuration file of the SageMaker SDK."""
        return self.folder / "sagemaker.yaml"

    def make(self) -> None:
        """Make the folder, for the user only.

        Raises:
            ConfigurationError: it cannot be made.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{self.folder} cannot be made: {error.strerror}. Set FLEETFIT_HOME to a folder that you can write to."
            ) from error

    def keys(self) -> Keys:
        """The keys, made at the first call.

        Raises:
            ConfigurationError: the file is damaged.
        """
        self.make()
        if not self.keys_file.exists():
            access_key = "FLEETFIT" + "".join(secrets.choice(_LETTERS) for _ in range(12))
            made = {"access_key": access_key, "secret_key": secrets.token_hex(20)}
            with contextlib.suppress(FileExistsError):  # somebody else was quicker: theirs count
                write_private(self.keys_file, json.dumps(made), replace=False)
        os.chmod(self.keys_file, 0o600)
        try:
            values = json.loads(self.keys_file.read_text(encoding="utf-8"))
            return Keys(str(values["access_key"]), str(values["secret_key"]))
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self.keys_file} is damaged. Remove the file: the next start makes new keys."
            ) from None


def region_of(text: str) -> str:
    """Check a region's name.

    Raises:
        ConfigurationError: it is none.
    """
    if not _REGION.fullmatch(text):
        raise ConfigurationError(f"{text!r} is not a region such as {DEFAULT_REGION!r}.")
    return text


def default_bucket(region: str) -> str:
    """The SDK's own name for it, so that scripts that work it out find it too."""
    return f"sagemaker-{region}-{ACCOUNT}"


def job_arn(region: str, name: str) -> str:
    """The ARN of a training job."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"


def tuning_arn(region: str, name: str) -> str:
    """The ARN of a hyperparameter tuning job."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:hyper-parameter-tuning-job/{name}"


def write_private(path: Path, text: str, *, replace: bool = True) -> None:
    """Write a file that only the user can read, all of it or nothing.

    Raises:
        FileExistsError: it is there, and ``replace`` is false.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if replace:
            os.replace(aside, path)
        else:
            os.link(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
