"""Signs requests for tests, with botocore's own signer."""

from __future__ import annotations

import datetime
import json
from typing import Any
from unittest import mock

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from estimators.service.settings import Keys

HOST = "127.0.0.1:8666"
KEYS = Keys("FLEETFITABCDEFGHIJKL", "0123456789abcdef0123456789abcdef01234567")
NOW = datetime.datetime(2026, 11, 21, 20, 0, 0, tzinfo=datetime.timezone.utc)

TARGETS = {"sagemaker": "SageMaker", "logs": "Logs_20140328", "monitoring": "GraniteServiceVersion20100801"}


def signed(
    operation: str,
    parameters: Any = None,
    *,
    service: str = "sagemaker",
    body: bytes | None = None,
    keys: Keys = KEYS,
    when: datetime.datetime = NOW,
    headers: dict[str, str] | None = None,
    host: str = HOST,
    region: str = "us-east-1",
) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a request that asks for an operation."""
    data = json.dumps(parameters if parameters is not None else {}).encode() if body is None else body
    if service in TARGETS:
        named = {"X-Amz-Target": f"{TARGETS[service]}.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    else:
        named = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = AWSRequest("POST", f"http://{host}/", headers={"Host": host, **named, **(headers or {})}, data=data)
    with mock.patch.object(auth, "get_current_datetime", lambda: when):
        auth.SigV4Auth(Credentials(keys.access_key, keys.secret_key), service, region).add_auth(request)
    return list(request.headers.items()), data
