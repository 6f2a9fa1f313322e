"""What a signed address may say besides its signature."""

from __future__ import annotations

import datetime

import pytest

from estimators.service.errors import ServiceError
from estimators.service.s3 import signatures
from estimators.service.settings import Keys

KEYS = Keys("key-of-the-test", "secret-of-the-test")
NOW = datetime.datetime(2026, 1, 31, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("name", "value"), [("x-amz-meta-a", "€"), ("x-amz-meta-a", "b\r\nc: d"), ("x-amz-meta-a b", "c")]
)
def test_a_parameter_that_no_header_can_be_is_refused(name: str, value: str) -> None:
    assert signatures._moved([("x-amz-meta-a", "b"), ("X-Amz-Date", "d"), ("prefix", "p")]) == {"x-amz-meta-a": "b"}
    with pytest.raises(ServiceError, match="is not a valid header"):
        signatures._moved([(name, value)])


@pytest.mark.parametrize(
    ("path", "query"),
    [("bucket/k", ""), ("http://x/bucket/k", ""), ("/bucket/k", "%75ploadId=u"), ("/bucket/k", "a=1&X%2DAmz-Date=d")],
)
def test_an_address_that_can_be_read_in_two_ways_is_refused(path: str, query: str) -> None:
    with pytest.raises(ServiceError) as error:
        signatures.verify("GET", path, query, {"host": "h"}, KEYS, NOW)
    assert error.value.code == "InvalidURI"


@pytest.mark.parametrize("text", ["00010101T000000Z", "99990101T000000Z", "now", ""])
def test_times_that_cannot_be_reckoned_with_are_refused(text: str) -> None:
    query = f"X-Amz-Signature=s&X-Amz-Credential={KEYS.access_key}/{text[:8] or '20260131'}/r/s3/aws4_request"
    with pytest.raises(ServiceError) as error:
        signatures.verify("GET", "/b/k", f"{query}&X-Amz-Date={text}&X-Amz-Expires=60", {"host": "h"}, KEYS, NOW)
    assert error.value.code in ("AccessDenied", "AuthorizationQueryParametersError")
