"""Create the S3 client, call it with retries, and explain its errors.

boto3's own configuration applies: credentials, region, profiles, ``AWS_ENDPOINT_URL`` and ``AWS_ENDPOINT_URL_S3``.
boto3 is imported on use, because most jobs do not need it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from container.agent import retrying
from container.agent.sources.base import SourceError

T = TypeVar("T")

#: How long a server may send nothing before the request is repeated, in seconds.
READ_TIMEOUT = 20.0
_CONNECT_TIMEOUT = 10.0
_POOL = 64

#: Transient error codes of S3.
_PASSING_CODES = frozenset(
    {
        "InternalError", "RequestTimeout", "RequestTimeTooSkewed", "ServiceUnavailable", "SlowDown", "Throttling",
        "ThrottlingException", "TooManyRequests", "OperationAborted", "BadDigest", "IncompleteBody",
    }
)  # fmt: skip

_lock = threading.Lock()


def split(uri: str) -> tuple[str, str]:
    """Split ``s3://bucket/key`` into the bucket and the key (or prefix).

    Raises:
        SourceError: the text is not an S3 URI.
    """
    bucket, _, key = uri[len("s3://") :].partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise SourceError(uri, "it is not an S3 URI", "Write s3://bucket/prefix.")
    return bucket, key


@functools.cache
def _client() -> Any:
    try:
        import botocore.session  # importing boto3 itself would take another 0.1 s in each process
        from botocore.config import Config
    except ImportError as error:
        import sys

        raise SourceError(
            "s3://", f"boto3 is not installed for {sys.executable} ({error})", "Install it: pip install boto3."
        ) from None
    return botocore.session.get_session().create_client(
        "s3",
        # SageMaker's containers set AWS_REGION, which botocore does not read.
        region_name=os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or None,
        config=Config(
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=_POOL,
            retries={"mode": "standard", "total_max_attempts": 1},  # our own retries know the position in a stream
            tcp_keepalive=True,
            request_checksum_calculation="when_required",  # not every S3-compatible server supports the newer checksums
            response_checksum_validation="when_required",
        ),
    )


def client() -> Any:
    """Return the S3 client of this process. Several threads may use the client.

    Raises:
        SourceError: boto3 is missing, or its configuration cannot be used.
    """
    with _lock:
        try:
            return _client()
        except SourceError:
            raise
        except Exception as error:  # botocore's configuration errors have no common base class
            raise SourceError(
                "s3://", f"the S3 client cannot be made: {error}", "Correct the AWS configuration."
            ) from error


def forget() -> None:
    """Discard the client after a change of the environment variables. The next call of :func:`client` creates a new
    client.
    """
    with _lock:
        _client.cache_clear()


def call(uri: str, function: Callable[[], T]) -> T:
    """Call a function that uses the client, and retry the call after transient errors.

    Args:
        uri: The object or prefix, for the error message.
        function: The function.

    Returns:
        The result of the function.

    Raises:
        SourceError: the call fails permanently, or too often.
    """
    failures = 0
    while True:
        try:
            return function()
        except SourceError:
            raise
        except Exception as error:
            failures += 1
            if not passes(error) or failures >= retrying.BACKOFF.attempts:
                raise explain(uri, error) from error
        time.sleep(retrying.BACKOFF.delay(failures))


def etag(answer: Mapping[str, Any]) -> str | None:
    """Return the ETag in a server's response, without quotes.

    The quotes are removed because not every server sends them in every response.
    """
    return str(answer.get("ETag") or "").strip('"') or None


def passes(error: Exception) -> bool:
    """Return whether a failure of the client is transient, so that a retry may succeed."""
    from botocore import exceptions, parsers
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as LateError

    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return error.response.get("Error", {}).get("Code") in _PASSING_CODES or status >= 500 or status == 429
    if isinstance(error, exceptions.ResponseStreamingError | exceptions.IncompleteReadError):
        return True
    if isinstance(error, parsers.ResponseParserError):  # the response was cut off
        return True
    if isinstance(error, exceptions.SSLError | exceptions.ProxyConnectionError):
        return False
    # The last two are raised if the body of an error response is cut off or late. botocore does not wrap these errors.
    unreachable = exceptions.ConnectionError  # for example while the server restarts, or the name service fails
    return isinstance(error, unreachable | exceptions.HTTPClientError | OSError | ProtocolError | LateError)


def explain(uri: str, error: Exception, *, offset: int | None = None) -> SourceError:
    """Convert an error of the client to an error that names the cause and the remedy.

    Args:
        uri: The object or prefix.
        error: The client's error.
        offset: The offset of the byte at which the error occurred. None if the error is not related to a position.
    """
    from botocore import exceptions
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as LateError

    cause, remedy = str(error) or type(error).__name__, ""
    endpoint = _endpoint()
    if isinstance(error, exceptions.ClientError):
        cause, remedy = _explain_answer(uri, error, endpoint)
    elif isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        cause = f"there are no AWS credentials ({cause.rstrip('.')})"
        remedy = (
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`. To use a local "
            "folder instead of S3, run `fleetfit s3 DIR`, which serves the folder and prints the variables to set."
        )
    elif isinstance(error, exceptions.TokenRetrievalError | exceptions.CredentialRetrievalError):
        cause = f"the AWS credentials could not be obtained: {cause}"
        remedy = "Log in again."
    elif isinstance(error, exceptions.ParamValidationError):
        cause = f"the bucket or the key is not valid: {cause}"
    elif isinstance(error, exceptions.ConnectionError):
        remedy = "Check the network and AWS_ENDPOINT_URL_S3, and start the job again."
    elif isinstance(error, exceptions.HTTPClientError | OSError | ProtocolError | LateError):
        cause = f"{endpoint} gave an unexpected answer: {cause}"
        remedy = "Check the network and AWS_ENDPOINT_URL_S3, and start the job again."
    return SourceError(uri, cause, remedy, offset=offset)


def _endpoint() -> str:
    try:
        return str(client().meta.endpoint_url)
    except SourceError:
        return "the endpoint"


def _explain_answer(uri: str, error: Any, endpoint: str) -> tuple[str, str]:
    """Return the cause and the remedy for an error response of the server."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = str(error.response.get("Error", {}).get("Message", "") or code)
    bucket = uri[len("s3://") :].partition("/")[0]
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket!r} at {endpoint}", _near_bucket(bucket)
    if code in ("NoSuchKey", "404", "NotFound") or status == 404:
        return "there is no such object", "Check the bucket and the key; the object may have been deleted."
    if code in ("PreconditionFailed", "412") or status == 412:
        return "it changed while the job read it (its ETag differs)", "Start the job again when the object is complete."
    if status == 416:
        return "it is shorter than when the job began", "Start the job again when the object is complete."
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestExpired"):
        return f"{endpoint} does not accept the credentials: {code} ({said})", (
            "Correct AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or log in again."
        )
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"):
        region = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
        where = f" {region!r}" if region else ""
        return f"bucket {bucket!r} is in another region{where}: {said}", (
            f"Set AWS_REGION{f'={region}' if region else ''} to the bucket's region."
        )
    if status == 403:
        return f"{endpoint} denies access: {code or 403} ({said})", (
            f"Check that the credentials may list and read bucket {bucket!r}, and that the bucket and its region "
            f"(now {os.environ.get('AWS_REGION') or os.environ.get('AWS_DEFAULT_REGION') or 'not set'}) are right."
        )
    return f"{endpoint} answers {status} {code} ({said})", "Start the job again, or ask the server's administrator."


def _near_bucket(bucket: str) -> str:
    from container.contract.names import nearest

    with contextlib.suppress(Exception):
        names = [entry["Name"] for entry in client().list_buckets().get("Buckets", [])]
        guess = nearest(bucket, names)
        if guess is not None:
            return f"Did you mean {guess!r}?"
        if names:
            return f"The endpoint has the buckets {', '.join(map(repr, names[:5]))}."
    return "Check its name and the endpoint."
