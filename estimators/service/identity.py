"""Implement the operations of STS and IAM that clients call before they create a job.

The operations return the caller's identity and roles.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from estimators.service.errors import denied
from estimators.service.settings import ACCOUNT

#: The role that callers appear to have assumed. SageMaker's tools read the role's name from the ARN of the caller.
ROLE = "fleetfit"
_ID = "AROAFLEETFIT00000000"
_CREATED = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc).timestamp()


def role_arn(name: str) -> str:
    """Return the ARN of a role."""
    return f"arn:aws:iam::{ACCOUNT}:role/{name}"


def caller_identity(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a GetCallerIdentity request."""
    return {
        "UserId": f"{_ID}:{ROLE}",
        "Account": ACCOUNT,
        "Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{ROLE}",
    }


def get_role(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a GetRole request. Every role exists, because roles have no effect."""
    name = str(request["RoleName"])
    return {
        "Role": {
            "Path": "/",
            "RoleName": name,
            "RoleId": _ID,
            "Arn": role_arn(name),
            "CreateDate": _CREATED,
        }
    }


def simulate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a SimulatePrincipalPolicy request. The endpoint has no policies.

    The SageMaker SDK 3.x continues after this error.

    Raises:
        ServiceError: always.
    """
    raise denied("a fleetfit endpoint has no policies, so they cannot be simulated.")
