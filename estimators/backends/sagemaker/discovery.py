"""Find the role, bucket and image of a job on SageMaker if the estimator does not set them.

The sources and their order are those of the SageMaker SDK 2.x (``session.py``: ``default_bucket``,
``get_caller_identity_arn``, ``expand_role``). Only missing settings are looked up. The search creates no resources.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from estimators.backends.sagemaker import images, sdk_config
from estimators.backends.sagemaker.aws import Aws, profile_of
from estimators.backends.sagemaker.explaining import code_of, explain, meaning
from estimators.backends.sagemaker.options import SageMakerOptions
from estimators.job.errors import ConfigurationError
from estimators.job.settings import Settings

#: This file exists on SageMaker's notebook instances and in Studio.
METADATA_FILE = Path("/opt/ml/metadata/resource-metadata.json")

_ASSUMED = re.compile(r"^(.+)sts::(\d+):assumed-role/(.+?)/.*$")
_ROLE_REMEDY = "give role='arn:aws:iam::123456789012:role/name', a role that trusts sagemaker.amazonaws.com"


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """An estimator's settings, completed with the settings that were found.

    Attributes:
        settings: The settings, which are complete except for the settings named in ``problems``.
        problems: A message for each missing setting, with the remedy.
        warnings: Warnings for the user.
    """

    settings: Settings
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def discover(settings: Settings, framework: str = "tensorflow") -> Discovery:
    """Find the settings that are missing in an estimator for ``instance_type="ml.…"``.

    Args:
        settings: The estimator's settings.
        framework: The framework that the script uses, such as ``tensorflow``.

    Raises:
        ConfigurationError: a configuration file cannot be read.
    """
    options = SageMakerOptions.of(settings.run_options.backend_options)
    config = sdk_config.load()
    warnings = []
    if config.unused:
        warnings.append(
            f"{', '.join(config.files)}: fleetfit uses only RoleArn of SageMaker.TrainingJob. Give "
            f"{', '.join(config.unused)} as arguments."
        )
    try:
        aws = Aws(region=options.region, profile=options.profile, session=settings.sagemaker_session)
    except ConfigurationError as error:
        lacking = () if settings.image_uri is not None else (images.unknown(settings, framework),)
        return Discovery(settings=settings, problems=(str(error), *lacking), warnings=tuple(warnings))
    search = _Search(settings, aws, config, framework)
    found = search.run()
    kept = dataclasses.replace(
        options, region=aws.region, profile=options.profile or profile_of(settings.sagemaker_session)
    )
    complete = dataclasses.replace(
        settings,
        **found,
        run_options=dataclasses.replace(settings.run_options, backend_options=kept.to_dict()),
    )
    return Discovery(settings=complete, problems=tuple(search.problems), warnings=(*warnings, *search.warnings))


class _Search:
    """A search for the missing settings of an estimator. Errors are collected as problems and not raised."""

    def __init__(self, settings: Settings, aws: Aws, config: sdk_config.SdkConfig, framework: str) -> None:
        self._settings = settings
        self._framework = framework
        self._aws = aws
        self._config = config
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def run(self) -> dict[str, Any]:
        steps = {"role": self._role, "output_path": self._output_path, "image_uri": self._image}
        found: dict[str, Any] = {}
        told: set[str] = set()
        for name, step in steps.items():
            try:
                value = step()
            except ConfigurationError as error:
                self.problems.append(str(error))
            except Exception as error:  # noqa: BLE001 - botocore's errors have no common class; all are explained
                text = explain(error)
                if text not in told:  # missing credentials are one problem, not three
                    self.problems.append(text)
                told.add(text)
                if name == "image_uri":
                    self.problems.append(images.unknown(self._settings, self._framework))
            else:
                found[name] = value
        return found

    def _role(self) -> str | None:
        role = self._settings.role or self._config.role
        if role is None:
            return execution_role(self._aws)
        if role.startswith("arn:"):
            return role
        try:
            return str(self._aws.client("iam").get_role(RoleName=role)["Role"]["Arn"])
        except Exception as error:
            raise ConfigurationError(
                f"role={role!r} could not be looked up: {meaning(error)} Check its name, or give its ARN."
            ) from error

    def _output_path(self) -> str:
        given = self._settings.output_path
        if given is not None:
            return given
        bucket = default_bucket(self._aws, self._config)
        session = self._aws.sdk_session
        prefix = getattr(session, "default_bucket_prefix", None) or self._config.prefix
        return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"

    def _image(self) -> str | None:
        choice = images.choose(self._settings, self._aws, self._framework)
        self.warnings += choice.warnings
        return choice.uri


def default_bucket(aws: Aws, config: sdk_config.SdkConfig) -> str:
    """Return the name of the SageMaker SDK's default bucket.

    The name is taken from the user's session. If the session has no name, it is taken from the SageMaker SDK's
    configuration files. Without both, the name is ``sagemaker-<region>-<account>``.
    """
    session = aws.sdk_session
    for attribute in ("_default_bucket", "_default_bucket_name_override"):
        if name := getattr(session, attribute, None):
            return str(name)
    return config.bucket or own_bucket(aws)


def own_bucket(aws: Aws) -> str:
    """Return ``sagemaker-<region>-<account>``, the name of the account's default bucket.

    A bucket that does not exist is created only if it has this name.
    """
    return f"sagemaker-{aws.region}-{aws.account}"


def execution_role(aws: Aws, metadata: Path = METADATA_FILE) -> str:
    """Return the ARN of the current role.

    On a notebook instance or in Studio, this is the role of the instance or of the Studio user. On other machines, this
    is the role that the caller has assumed.

    Raises:
        ConfigurationError: the caller has not assumed a role.
    """
    arn = _role_of_notebook(aws, metadata)
    if arn is None:
        arn = _role_of_caller(aws)
    if ":role/" not in arn:
        raise ConfigurationError(f"role is missing, and the caller is not a role ({arn}): {_ROLE_REMEDY}.")
    return arn


def _role_of_notebook(aws: Aws, metadata: Path) -> str | None:
    try:
        facts = json.loads(metadata.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if facts.get("ExecutionRoleArn"):
        return str(facts["ExecutionRoleArn"])
    client = aws.client("sagemaker")
    domain, user = facts.get("DomainId"), facts.get("UserProfileName")
    with contextlib.suppress(Exception):  # without permission for these requests, the caller's own role is used
        if domain is None:
            return str(client.describe_notebook_instance(NotebookInstanceName=facts["ResourceName"])["RoleArn"])
        if user is not None:
            profile = client.describe_user_profile(DomainId=domain, UserProfileName=user)
            if role := (profile.get("UserSettings") or {}).get("ExecutionRole"):
                return str(role)
        return str(client.describe_domain(DomainId=domain)["DefaultUserSettings"]["ExecutionRole"])
    return None


def _role_of_caller(aws: Aws) -> str:
    caller = str(aws.identity["Arn"])
    assumed = _ASSUMED.match(caller)
    if assumed is None:
        return caller
    start, account, name = assumed.groups()
    try:
        return str(aws.client("iam").get_role(RoleName=name)["Role"]["Arn"])  # IAM's ARN includes the role's path
    except Exception as error:
        if not code_of(error):
            raise
        path = "service-role/" if "AmazonSageMaker-ExecutionRole" in name else ""
        return f"{start}iam::{account}:role/{path}{name}"
