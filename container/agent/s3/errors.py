"""Explain the errors of S3 and of its client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from container.agent.sources.base import SourceError


def explain(uri: str, error: Exception, client: Callable[[], Any], *, offset: int | None = None) -> SourceError:
    """Turn a failure of the client into an error with its cause and remedy.

    Args:
        uri: What it is about.
        error: What the client raised.
        client: Gives the client.
        offset: The byte at which it happened.
    """
    from botocore import exceptions
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as LateError

    cause, remedy = str(error) or type(error).__name__, ""
    endpoint = _endpoint(client)
    if isinstance(error, exceptions.ClientError):
        cause, remedy = _explain_answer(uri, error, endpoint, client)
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
    elif isinstance(error, exceptions.HTTPClientError | OSError | ProtocolError | LateError):
        cause = f"{endpoint} gave an unexpected answer: {cause}"
        remedy = "Check the network and AWS_ENDPOINT_URL_S3, and start the job again."
    return SourceError(uri, cause, remedy, offset=offset)


def _endpoint(client: Callable[[], Any]) -> str:
    try:
        return str(client().meta.endpoint_url)
    except SourceError:
        return "the endpoint"


def _explain_answer(uri: str, error: Any, endpoint: str, client: Callable[[], Any]) -> tuple[str, str]:
    """Return the cause and the remedy for an error answer of the server."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = str(error.response.get("Error", {}).get("Message", "") or code)
    bucket = uri[len("s3://") :].partition("/")[0]
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket!r} at {endpoint}", _near_bucket(bucket, client)
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


def _near_bucket(bucket: str, client: Callable[[], Any]) -> str:
    from container.contract.names import nearest

    with contextlib.suppress(Exception):
        names = [entry["Name"] for entry in client().list_buckets().get("Buckets", [])]
        guess = nearest(bucket, names)
        if guess is not None:
            return f"Did you mean {guess!r}?"
        if names:
            return f"The endpoint has the buckets {', '.join(map(repr, names[:5]))}."
    return "Check its name and the endpoint."
