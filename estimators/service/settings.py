"""Store the keys of an endpoint, and define the paths of its files below ``$FLEETFIT_HOME/service/``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import string
from pathlib import Path

from container.contract.frozen import dataclass
from container.system import files
from estimators.job.errors import ConfigurationError
from estimators.records.record import jobs_folder

#: The AWS account that jobs and buckets appear to belong to.
ACCOUNT = "000000000000"

DEFAULT_REGION = "us-east-1"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_LETTERS = string.ascii_uppercase + string.digits


@dataclass(frozen=True)
class Keys:
    """The keys with which every request must be signed."""

    access_key: str
    secret_key: str = dataclasses.field(repr=False)


class EndpointFiles:
    """The paths of the files of an endpoint.

    Attributes:
        home: The path of the endpoint's ``$FLEETFIT_HOME``.
        folder: The folder that contains the endpoint's files.
        keys_file: The file with the keys. Only the user can read the file.
        lock_file: The lock file. The lock is held while an endpoint of this home runs.
        storage_lock_file: The S3 server's lock file. The lock is held while the S3 server runs, which may be longer
            than the endpoint runs.
        storage_file: The file with the S3 server's address.
        sdk_config_file: The SageMaker SDK's configuration file.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "service"
        self.keys_file = self.folder / "keys.json"
        self.lock_file = self.folder / "lock"
        self.storage_lock_file = self.folder / "s3.lock"
        self.storage_file = self.folder / "s3.json"
        self.sdk_config_file = self.folder / "sagemaker.yaml"

    @classmethod
    def of(cls, home: str | Path | None = None) -> EndpointFiles:
        """Return the files of the endpoint for a home folder. If ``home`` is None, use ``$FLEETFIT_HOME``."""
        return cls(jobs_folder(home).parent)

    def make(self) -> None:
        """Create the folder of the endpoint's files. Only the user can access the folder.

        Raises:
            ConfigurationError: the folder cannot be created.
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
        """Return the keys. The first call, by an endpoint that holds its lock, creates the keys.

        Raises:
            ConfigurationError: the file is damaged.
        """
        self.make()
        if not self.keys_file.exists():
            access_key = "FLEETFIT" + "".join(secrets.choice(_LETTERS) for _ in range(12))
            made = {"access_key": access_key, "secret_key": secrets.token_hex(20)}
            files.replace(self.keys_file, json.dumps(made).encode())
        os.chmod(self.keys_file, 0o600)
        try:
            values = json.loads(self.keys_file.read_text(encoding="utf-8"))
            return Keys(str(values["access_key"]), str(values["secret_key"]))
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self.keys_file} is damaged. Remove the file: the next start makes new keys."
            ) from None


def region_of(text: str) -> str:
    """Validate a region's name, and return it.

    Raises:
        ConfigurationError: the text is not a region.
    """
    if not _REGION.fullmatch(text):
        raise ConfigurationError(f"{text!r} is not a region such as {DEFAULT_REGION!r}.")
    return text


def default_bucket(region: str) -> str:
    """Return the name of the default bucket.

    The name is the same as in SageMaker's SDK, so that scripts can derive it.
    """
    return f"sagemaker-{region}-{ACCOUNT}"


def job_arn(region: str, name: str) -> str:
    """Return the ARN of a training job."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"


def tuning_arn(region: str, name: str) -> str:
    """Return the ARN of a hyperparameter tuning job."""
    return f"arn:aws:sagemaker:{region}:{ACCOUNT}:hyper-parameter-tuning-job/{name}"
