"""The S3 client, its calls and their retries.

boto3's own configuration counts: credentials, region, profiles, ``AWS_ENDPOINT_URL`` and ``AWS_ENDPOINT_URL_S3``. It is
imported on use, since most jobs need none of it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from container.agent.retrying import retrying
from container.agent.sources.base import SourceError

T = TypeVar("T")

#: A server that sends nothing for this long is given up, and asked again, in seconds.
READ_TIMEOUT = 20.0
_CONNECT_TIMEOUT = 10.0
_POOL = 64

#: Error codes of S3 that pass by themselves.
_PASSING_CODES = frozenset(
    {
        "InternalError", "RequestTimeout", "RequestTimeTooSkewed", "ServiceUnavailable", "SlowDown", "Throttling",
        "ThrottlingException", "TooManyRequests", "OperationAborted", "BadDigest", "IncompleteBody",
    }
)  # fmt: skip

_lock = threading.Lock()


def split(uri: str) -> tuple[str, str]:
    """Split ``s3://bucket/key`` into bucket and key (or prefix).

    Raises:
        SourceError: it is no such URI.
    """
    bucket, _, key = uri[len("s3://") :].partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise SourceError(uri, "it is not an S3 URI", "Write s3://bucket/prefix.")
    return bucket, key


@functools.cache
def _client() -> Any:
    try:
        import botocore.session  # boto3's own layer takes another 0.1 s of each process
        from botocore.config import Config
    except ImportError as error:
        import sys

        raise SourceError(
            "s3://", f"boto3 is not installed for {sys.executable} ({error})", "Install it: pip install boto3."
        ) from None
    return botocore.session.get_session().create_client(
        "s3",
        # SageMaker's containers have the first, which botocore does not read.
        region_name=os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or None,
        config=Config(
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=_POOL,
            retries={"mode": "standard", "total_max_attempts": 1},  # ours know how far a stream has come
            tcp_keepalive=True,
            request_checksum_calculation="when_required",  # not every S3-compatible server knows the newer ones
            response_checksum_validation="when_required",
        ),
    )


def client() -> Any:
    """Return the S3 client of this process; several threads may use it.

    Raises:
        SourceError: boto3 is missing, or its configuration cannot be used.
    """
    with _lock:
        try:
            return _client()
        except SourceError:
            raise
        except Exception as error:  # botocore's configuration errors have no common class
            raise SourceError(
                "s3://", f"the S3 client cannot be made: {error}", "Correct the AWS configuration."
            ) from error


def forget() -> None:
    """Make a new client on the next use: the environment has changed."""
    with _lock:
        _client.cache_clear()


def call(uri: str, function: Callable[[], T]) -> T:
    """Call the client; what passes is tried again, and what does not becomes a :class:`SourceError`.

    Args:
        uri: What it is about, for the error.
        function: The call.
    """
    try:
        return retrying(function, passes)
    except SourceError:
        raise
    except Exception as error:
        from container.agent.s3.errors import explain

        raise explain(uri, error, client) from error


def etag(answer: Mapping[str, Any]) -> str | None:
    """Return the ETag of an answer without quotes, which not every server writes everywhere."""
    return str(answer.get("ETag") or "").strip('"') or None


def passes(error: Exception) -> bool:
    """Return whether a failure of the client is transient, so that a retry makes sense."""
    from botocore import exceptions, parsers
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as LateError

    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return error.response.get("Error", {}).get("Code") in _PASSING_CODES or status >= 500 or status == 429
    if isinstance(error, exceptions.ResponseStreamingError | exceptions.IncompleteReadError):
        return True
    if isinstance(error, parsers.ResponseParserError):  # a body that was cut
        return True
    if isinstance(error, exceptions.SSLError | exceptions.ProxyConnectionError):
        return False
    # The last two are what comes of an error answer's body that is cut or late: botocore does not wrap it.
    return isinstance(error, exceptions.HTTPClientError | OSError | ProtocolError | LateError)
