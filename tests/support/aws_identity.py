"""Who the tests of the SageMaker backend are to AWS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REGION = "eu-west-1"
ACCOUNT = "123456789012"


def caller(stub: Callable[[str], Any], arn: str = f"arn:aws:iam::{ACCOUNT}:user/me") -> None:
    """Expect to be asked who the caller is."""
    stub("sts").add_response("get_caller_identity", {"Account": ACCOUNT, "Arn": arn, "UserId": "x"}, {})
