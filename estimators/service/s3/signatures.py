"""Verify S3's signatures: Version 4 in headers or in the URL, and Version 2 in the URL.

Clients that sign URLs for a custom server (`generate_presigned_url()` of boto3) use Version 2 by default. The signature
of a request covers the request's content. If content is signed during the transfer, each chunk has a signature. These
signatures are not verified, because no third party can change data on the loopback interface.

Sources: "Authenticating Requests (AWS Signature Version 4)" and "Signing and authenticating REST requests (AWS
signature version 2)" (Amazon S3's documentation).
"""

from __future__ import annotations

import dataclasses
import datetime
import hmac
import re
import urllib.parse
from collections.abc import Mapping

from botocore.auth import HmacV1QueryAuth, S3SigV4Auth
from botocore.awsrequest import AWSRequest, HTTPHeaders
from botocore.credentials import Credentials

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError, denied
from estimators.service.settings import Keys
from estimators.service.signing import AUTHORIZATION, CLOCK_SKEW, TIME

UNSIGNED = "UNSIGNED-PAYLOAD"
#: Parameters of a URL that belong to its signature, and do not replace headers.
_OF_SIGNATURES = frozenset(
    f"x-amz-{name}"
    for name in ("algorithm", "credential", "date", "expires", "signedheaders", "signature", "security-token",
                 "content-sha256")
)  # fmt: skip


@dataclass(frozen=True)
class Signed:
    """The data that a signature covers.

    Attributes:
        digest: The signed digest of the content: a SHA-256, or a keyword for how the content is sent.
        region: The region in the signature. Empty if the signature has no region.
        headers: The headers, as a dict with lower-case names. Headers that are parameters of a signed URL are included.
    """

    digest: str
    region: str
    headers: Mapping[str, str]


_TOKEN = re.compile(r"[a-z0-9!#$&'*+.^_`|~-]+")
_VALUE = re.compile("[\t -~\xa0-\xff]*")
_CREDENTIAL = re.compile(r"([^/\s]{1,128})/(\d{8})/([A-Za-z0-9-]{1,64})/s3/aws4_request")
#: The longest validity of a signed URL of Version 4, in seconds.
_LONGEST = 7 * 24 * 3600


@dataclass(frozen=True)
class _Asked:
    """A request whose signature is to be verified.

    Attributes:
        method: The HTTP method.
        path: The path, as received.
        query: The parameters of the query, in the order in which they were received.
        headers: The headers, as a dict with lower-case names.
        keys: The keys for the signature.
        now: The time of this machine, in UTC.
    """

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: Mapping[str, str]
    keys: Keys
    now: datetime.datetime


class _S3Signer(S3SigV4Auth):
    """A signer for Version 4 that signs all headers of the request object, and the digest that the client has sent."""

    def payload(self, request: AWSRequest) -> str:
        digest: str = request.context["digest"]
        return digest

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.headers


class _AddressSigner(HmacV1QueryAuth):
    """A signer for Version 2 that uses the expiry time from the request's URL."""

    def _get_date(self) -> str:
        return str(self._expires)


def verify(
    method: str, path: str, query: str, headers: Mapping[str, str], keys: Keys, now: datetime.datetime
) -> Signed:
    """Verify a request's signature.

    Args:
        method: The HTTP method.
        path: The path, as received.
        query: The query, as received.
        headers: The headers, as a dict with lower-case names.
        keys: The keys for the signature.
        now: The time of this machine, in UTC.

    Raises:
        ServiceError: the request is not signed, or its key, signature or time is not valid.
    """
    if not path.startswith("/"):
        raise ServiceError("InvalidURI", "The request has to name a path, which begins with a slash.")
    if any("%" in pair.partition("=")[0] for pair in query.split("&")):
        raise ServiceError("InvalidURI", "The names of parameters have to be spelled without percent signs.")
    try:
        given = urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise ServiceError("InvalidURI", "Couldn't parse the specified URI.") from None
    asked = _Asked(method, path, given, headers, keys, now)
    names = {name for name, _ in given}
    if "authorization" in headers:
        return Signed(*_verify_headers(asked), headers)
    if "X-Amz-Signature" in names:
        return Signed(*_verify_address(asked), {**_moved(given), **headers})
    if "Signature" in names:
        _verify_old_address(asked, query)
        return Signed(UNSIGNED, "", {**_moved(given), **headers})
    raise denied("Access Denied. (Requests have to be signed with this server's keys.)")


def _moved(given: list[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that are parameters of a signed URL.

    Raises:
        ServiceError: a parameter is not a valid header.
    """
    found = {}
    for name, value in given:
        lower = name.lower()
        is_header = lower in ("content-type", "content-md5") or lower.startswith("x-amz-")
        if not is_header or lower in _OF_SIGNATURES:
            continue
        if not _TOKEN.fullmatch(lower) or not _VALUE.fullmatch(value):
            raise ServiceError("InvalidArgument", f"The parameter {lower[:100]!r} is not a valid header.")
        found[lower] = value
    return found


def _verify_headers(asked: _Asked) -> tuple[str, str]:
    match = AUTHORIZATION.fullmatch(asked.headers["authorization"])
    if match is None:
        raise _malformed("The authorization header is malformed; AWS4-HMAC-SHA256 of Signature Version 4 is needed.")
    access_key, date, region, service, names, signature = match.groups()
    if service != "s3":
        raise _malformed(f"The authorization header is malformed; incorrect service '{service}'.")
    _check_key(access_key, asked.keys)
    time = asked.headers.get("x-amz-date", "")
    moment = _moment(time, date)
    if abs(asked.now - moment) > datetime.timedelta(seconds=CLOCK_SKEW):
        raise ServiceError(
            "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.", 403
        )
    digest = asked.headers.get("x-amz-content-sha256")
    if digest is None:
        raise ServiceError("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    _check(asked, names.split(";"), time, digest, region, signature)
    return digest, region


def _verify_address(asked: _Asked) -> tuple[str, str]:
    given = dict(asked.query)
    match = _CREDENTIAL.fullmatch(given.get("X-Amz-Credential", ""))
    expires = given.get("X-Amz-Expires", "")
    if match is None or not re.fullmatch(r"\d{1,7}", expires) or not 0 < int(expires) <= _LONGEST:
        raise ServiceError(
            "AuthorizationQueryParametersError",
            "X-Amz-Credential must be KEY/date/region/s3/aws4_request, and X-Amz-Expires up to 604800 seconds.",
        )
    access_key, date, region = match.groups()
    _check_key(access_key, asked.keys)
    time = given.get("X-Amz-Date", "")
    moment = _moment(time, date)
    if moment - datetime.timedelta(seconds=CLOCK_SKEW) > asked.now:
        raise denied("Request is not valid yet")
    if asked.now > moment + datetime.timedelta(seconds=int(expires)):
        raise denied("Request has expired")
    digest = given.get("X-Amz-Content-SHA256") or asked.headers.get("x-amz-content-sha256") or UNSIGNED
    names = given.get("X-Amz-SignedHeaders", "").split(";")
    rest = [(name, value) for name, value in asked.query if name != "X-Amz-Signature"]
    _check(dataclasses.replace(asked, query=rest), names, time, digest, region, given["X-Amz-Signature"])
    return digest, region


def _verify_old_address(asked: _Asked, query: str) -> None:
    given = dict(asked.query)
    if any(name != name.lower() for name in given if name.lower().startswith("x-amz-")):
        raise _mismatch()  # Version 2 signs only lower-case names of these parameters
    _check_key(given.get("AWSAccessKeyId", ""), asked.keys)
    expires = given.get("Expires", "")
    if not re.fullmatch(r"\d{1,12}", expires):
        raise denied("Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters")
    if asked.now.timestamp() > int(expires):
        raise denied("Request has expired")
    signed = HTTPHeaders()
    # The URL may contain headers as parameters. The client then also sends these headers, with equal values.
    for name, value in {**given, **asked.headers}.items():
        if name.startswith("x-amz-") or name in ("content-md5", "content-type"):
            signed[name] = value
    signer = _AddressSigner(Credentials(asked.keys.access_key, asked.keys.secret_key), expires)
    split = urllib.parse.SplitResult("http", "", asked.path, query, "")
    expected = signer.get_signature(asked.method, split, signed)
    if not hmac.compare_digest(expected.encode(), given["Signature"].encode("utf-8", "replace")):
        raise _mismatch()


def _check(asked: _Asked, names: list[str], time: str, digest: str, region: str, signature: str) -> None:
    headers = asked.headers
    unsigned = {"host", *(name for name in headers if name.startswith("x-amz-"))} - set(names)
    absent = [name for name in names if name not in headers]
    if unsigned or absent:
        raise denied(
            "There were headers present in the request which were not signed, or signed headers are missing: "
            f"{', '.join(sorted([*unsigned, *absent]))}"
        )
    # As on AWS, the signature is for the decoded path, so the client's encoding of the path does not matter.
    canonical = urllib.parse.quote(urllib.parse.unquote_to_bytes(asked.path), safe="/-_.~")
    parameters = urllib.parse.urlencode(asked.query, safe="-_.~", quote_via=urllib.parse.quote)
    assert canonical.startswith("/")  # otherwise a part of the path would be read as the host, and not be signed
    request = AWSRequest(method=asked.method, url=f"http://host{canonical}?{parameters}")
    for name in names:
        request.headers[name] = headers[name]
    request.context["timestamp"] = time
    request.context["digest"] = digest
    signer = _S3Signer(Credentials(asked.keys.access_key, asked.keys.secret_key), "s3", region)
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        raise _mismatch()


def _check_key(given: str, keys: Keys) -> None:
    if not hmac.compare_digest(given.encode("utf-8", "replace"), keys.access_key.encode()):
        raise ServiceError(
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records. (This is fleetfit's S3 server: it "
            "accepts the keys that it was started with.)",
            403,
        )


def _moment(text: str, date: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.strptime(text, TIME).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        raise denied("AWS authentication requires a valid Date or x-amz-date header") from None
    if not 1970 < moment.year < 9000:  # other years would overflow in calculations
        raise denied("AWS authentication requires a valid Date or x-amz-date header")
    if text[:8] != date:
        raise _malformed("The credential's date differs from X-Amz-Date.")
    return moment


def _malformed(message: str) -> ServiceError:
    return ServiceError("AuthorizationHeaderMalformed", message)


def _mismatch() -> ServiceError:
    return ServiceError(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing "
        "method.",
        403,
    )
