"""Verify the AWS Signature Version 4 of a request, with botocore's signer.

Source: "Signature Version 4 signing process" (AWS documentation).
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError
from estimators.service.settings import DEFAULT_REGION, Keys

#: The largest difference between a request's time and this machine's, in seconds.
CLOCK_SKEW = 15 * 60

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=([^/,\s]{1,128})/(\d{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request, *"
    r"SignedHeaders=([a-z0-9;_-]{1,2048}), *Signature=([0-9a-f]{64})"
)
TIME = "%Y%m%dT%H%M%SZ"
#: Services with a single address for all regions -> the region that clients sign for.
_ONE_FOR_ALL = {"iam": "us-east-1", "sts": "us-east-1"}

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Claim:
    """The data about a request's signature in the request's headers.

    Attributes:
        service: The service that the client addresses, such as ``sagemaker`` or ``logs``.
        region: The region that the client addresses.
        headers: All headers, as a dict with lower-case names.
        signed: The names of the signed headers.
        signature: The signature, which is not verified yet.
    """

    service: str
    region: str
    headers: Mapping[str, str]
    signed: Sequence[str]
    signature: str


class _Signer(SigV4Auth):
    def payload(self, request: AWSRequest) -> str:
        digest: str = request.context["digest"]
        return digest


def claim(headers: Headers, keys: Keys, now: datetime.datetime, region: str = DEFAULT_REGION) -> Claim:
    """Read a request's signature from the headers, without verifying the signature itself.

    Everything that needs neither the body nor the secret key is checked.

    Args:
        headers: The headers, as received.
        keys: The endpoint's keys.
        now: This machine's time, in UTC.
        region: The endpoint's region. The request must be signed for this region. Requests to IAM and STS may also be
            signed for ``us-east-1``.

    Raises:
        ServiceError: the request is not signed, or its key, scope or time is not valid.
    """
    given = _single(headers)
    authorization = given.get("authorization")
    if authorization is None:
        raise ServiceError("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
    match = AUTHORIZATION.fullmatch(authorization)
    if match is None:
        raise _incomplete("the Authorization header does not use AWS4-HMAC-SHA256.")
    access_key, date, signed_region, service, names, signature = match.groups()
    if not hmac.compare_digest(access_key.encode(), keys.access_key.encode()) or "x-amz-security-token" in given:
        raise ServiceError(
            "UnrecognizedClientException",
            "The security token included in the request is invalid. (This is a fleetfit endpoint: it accepts the keys "
            "of the profile that it wrote, without a session token.)",
            403,
        )
    signed = names.split(";")
    required = {"host", "x-amz-date", *(name for name in given if name.startswith("x-amz-"))}
    missing = sorted(required - set(signed))
    if missing:
        raise _incomplete(f"these headers must be signed, but are not: {', '.join(missing)}.")
    absent = [name for name in signed if name not in given]
    if absent:
        raise _incomplete(f"these headers are signed, but missing: {', '.join(absent)}.")
    _check_time(given["x-amz-date"], date, now)
    if signed_region not in (region, _ONE_FOR_ALL.get(service)):
        raise ServiceError(
            "InvalidSignatureException",
            f"Credential should be scoped to a valid region, not '{signed_region}'. (This is a fleetfit endpoint for "
            f"{region}: use that region in the client, or start `fleetfit serve --region {signed_region}`.)",
            403,
        )
    return Claim(service, signed_region, given, signed, signature)


def verify(
    method: str,
    target: str,
    headers: Headers,
    body: bytes,
    keys: Keys,
    now: datetime.datetime,
    region: str = DEFAULT_REGION,
) -> Claim:
    """Verify a request's signature, and return the data about the signature.

    Args:
        method: The HTTP method.
        target: The request's target: path and query.
        headers: As for :func:`claim`.
        body: The body.
        keys: As for :func:`claim`.
        now: As for :func:`claim`.
        region: As for :func:`claim`.

    Raises:
        ServiceError: the request is not signed, or its key, scope, signature or time is not valid.
    """
    claimed = claim(headers, keys, now, region)
    given = claimed.headers
    digest = hashlib.sha256(body).hexdigest()
    if given.get("x-amz-content-sha256", digest) != digest:
        raise _mismatch()
    try:
        request = AWSRequest(
            method=method, url=f"http://{given['host']}{target}", headers={name: given[name] for name in claimed.signed}
        )
        request.context["timestamp"] = given["x-amz-date"]
        request.context["digest"] = digest
        signer = _Signer(Credentials(keys.access_key, keys.secret_key), claimed.service, claimed.region)
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    except ValueError as error:  # raised by urllib, which parses the address
        raise _incomplete(f"the request's address cannot be read: {error}.") from None
    if not hmac.compare_digest(expected, claimed.signature):
        raise _mismatch()
    return claimed


def _single(headers: Headers) -> dict[str, str]:
    """Return the headers as a dict with lower-case names.

    Raises:
        ServiceError: a header is repeated, which makes its value ambiguous.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in found:
            raise _incomplete(f"the header {lower} comes twice.")
        found[lower] = value
    return found


def _check_time(text: str, date: str, now: datetime.datetime) -> None:
    try:
        when = datetime.datetime.strptime(text, TIME).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        raise _incomplete(f"X-Amz-Date must be like 20260131T235959Z, got {text[:40]!r}.") from None
    if text[:8] != date:
        raise _incomplete("the credential's date differs from X-Amz-Date.")
    limit = datetime.timedelta(seconds=CLOCK_SKEW)
    if when < now - limit:
        raise ServiceError(
            "InvalidSignatureException",
            f"Signature expired: {text} is now earlier than {(now - limit).strftime(TIME)} "
            f"({now.strftime(TIME)} - 15 min.)",
            403,
        )
    if when > now + limit:
        raise ServiceError(
            "InvalidSignatureException",
            f"Signature not yet current: {text} is still later than {(now + limit).strftime(TIME)} "
            f"({now.strftime(TIME)} + 15 min.)",
            403,
        )


def _incomplete(why: str) -> ServiceError:
    return ServiceError("IncompleteSignatureException", f"The request's signature cannot be checked: {why}", 403)


def _mismatch() -> ServiceError:
    return ServiceError(
        "InvalidSignatureException",
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access "
        "Key and signing method. Consult the service documentation for details.",
        403,
    )
