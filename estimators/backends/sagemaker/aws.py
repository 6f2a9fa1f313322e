"""Create the AWS clients of a job's caller and supervisor, and find the account, region and credentials.

boto3's own configuration applies: credentials, profiles, ``AWS_ENDPOINT_URL`` and similar variables. Credentials are
never written to disk. A supervisor gets credentials through its environment. If the credentials belong to a profile,
the supervisor reads the profile itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from estimators.job.errors import ConfigurationError

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 30.0
#: Attempts of one call within botocore, with growing delays. The code that follows a job retries beyond that.
_ATTEMPTS = 5

REGION_REMEDY = (
    "set AWS_REGION (or AWS_DEFAULT_REGION), or give the profile a region (`aws configure`). In Python, you can also "
    "give sagemaker_session=boto3.Session(region_name='eu-west-1')"
)


class Aws:
    """The AWS clients of one region. Several threads may call the methods.

    Args:
        region: The region. If None, :func:`find_region` finds the region.
        profile: The name of a profile in AWS's configuration files.
        session: The user's boto3 or SageMaker session. If None, a new boto3 session is created.

    Raises:
        ConfigurationError: no region is known, or the profile does not exist.
    """

    def __init__(self, *, region: str | None = None, profile: str | None = None, session: Any = None) -> None:
        self.session = boto_session(session) or _new_session(profile)
        self.sdk_session = session if hasattr(session, "boto_session") else None
        found = region or find_region(session, self.session)
        if found is None:
            raise ConfigurationError(f"no AWS region is known: {REGION_REMEDY}.")
        self.region = found
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return the client of an AWS service. Each service's client is created only once.

        Raises:
            ConfigurationError: AWS's configuration cannot be used.
        """
        if service not in self._clients:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError

            try:
                self._clients[service] = self.session.client(
                    service,
                    region_name=self.region,
                    config=Config(
                        connect_timeout=_CONNECT_TIMEOUT,
                        read_timeout=_READ_TIMEOUT,
                        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                        tcp_keepalive=True,
                        user_agent_extra="fleetfit",
                        request_checksum_calculation="when_required",  # some S3-compatible servers refuse checksums
                        response_checksum_validation="when_required",
                    ),
                )
            except (BotoCoreError, ValueError) as error:
                raise ConfigurationError(f"the AWS configuration cannot be used: {error}.") from error
        return self._clients[service]

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """Return STS's response to GetCallerIdentity, with ``Account`` and ``Arn``."""
        return dict(self.client("sts").get_caller_identity())

    @property
    def account(self) -> str:
        """Return the number of the AWS account."""
        return str(self.identity["Account"])

    @property
    def domain(self) -> str:
        """Return the domain of the region's service addresses: ``amazonaws.com``, or ``amazonaws.com.cn`` in China."""
        return "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"


def boto_session(session: Any) -> Any:
    """Return the boto3 session that a boto3 or SageMaker session uses. Return None if ``session`` is None."""
    return getattr(session, "boto_session", None) or session


def _new_session(profile: str | None) -> Any:
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.session.Session(profile_name=profile)
    except BotoCoreError as error:
        raise ConfigurationError(f"the AWS configuration cannot be used: {error}.") from error


def find_region(session: Any = None, boto: Any = None) -> str | None:
    """Return the region that is set in the session, the environment or the profile, in this order. Return None if no
    region is set.

    Args:
        session: The user's boto3 or SageMaker session.
        boto: A boto3 session that uses the profile.
    """
    named = getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
    environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or environment or getattr(boto, "region_name", None) or None


def profile_of(session: Any) -> str | None:
    """Return the profile that a session was created with.

    Return None if the session has no profile, or if ``AWS_PROFILE`` names the same profile.
    """
    boto = boto_session(session)
    core = getattr(boto, "_session", None)
    profile = getattr(core, "profile", None)
    return str(profile) if profile and profile != os.environ.get("AWS_PROFILE") else None


def supervisor_environment(session: Any) -> dict[str, str] | None:
    """Return the environment variables with which a supervisor can use the credentials of the user's session.

    If the session has a profile, the variables contain the profile's name. If the session was created with explicit
    keys, the variables contain the keys. A supervisor cannot renew explicit keys, and it warns when the keys have
    expired.

    Args:
        session: The user's boto3 or SageMaker session.

    Returns:
        The complete environment of the supervisor. None if there is no session, so that this process's environment is
        sufficient.
    """
    boto = boto_session(session)
    if boto is None:
        return None
    changed = dict(os.environ)
    endpoint = getattr(getattr(getattr(session, "sagemaker_client", None), "meta", None), "endpoint_url", None)
    if endpoint and ".amazonaws.com" not in endpoint:
        changed["AWS_ENDPOINT_URL_SAGEMAKER"] = str(endpoint)
    profile = profile_of(session)
    credentials = boto.get_credentials()
    if credentials is None:
        return changed
    if profile is not None and credentials.method != "explicit":
        for name in _KEYS:
            changed.pop(name, None)
        changed["AWS_PROFILE"] = profile
        return changed
    if credentials.method in ("env", "iam-role", "container-role") or (
        profile is None and credentials.method not in ("explicit", "sts-assume-role", None)
    ):
        return changed  # the supervisor finds the credentials where this process did
    frozen = credentials.get_frozen_credentials()
    for name, value in zip(_KEYS, (frozen.access_key, frozen.secret_key, frozen.token), strict=True):
        if value:
            changed[name] = value
        else:
            changed.pop(name, None)
    return changed
