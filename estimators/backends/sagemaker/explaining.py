"""Explain AWS's errors. Determine whether an error is temporary, and what the user can do about a permanent error."""

from __future__ import annotations

from typing import Any

#: Error codes of temporary errors. Source: botocore's ``retries/standard.py`` and the services' API references.
PASSING = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException",
        "TooManyRequestsException", "ProvisionedThroughputExceededException",
        "TransactionInProgressException", "RequestLimitExceeded", "ConcurrentRequestLimitExceeded",
        "BandwidthLimitExceeded", "LimitExceededException", "RequestThrottled", "SlowDown", "PriorRequestNotComplete",
        "EC2ThrottledException", "InternalError", "InternalFailure", "InternalServerError", "InternalServerException",
        "ServiceUnavailable", "ServiceUnavailableException", "RequestTimeout", "RequestTimeoutException",
        "RequestTimeTooSkewed", "OperationAborted", "Unavailable", "Server.InternalError",
    }
)  # fmt: skip

#: Error codes that a new login resolves. The supervisor of a running job waits for a new login.
_CREDENTIALS = frozenset(
    {
        "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId",
        "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSignatureException",
        "IncompleteSignature",
        "InvalidToken",
    }
)  # fmt: skip

_MISSING = frozenset(
    {"ResourceNotFound", "ResourceNotFoundException", "RepositoryNotFoundException", "ImageNotFoundException"}
)

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AccessDeniedError", "UnauthorizedOperation", "403"})

_LOGIN = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN or the profile, or log in again."
_NO_CREDENTIALS = (
    "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`. In Python, you can also "
    "give sagemaker_session=boto3.Session(…)."
)


def needs_login(error: BaseException) -> bool:
    """Return whether the credentials are missing, expired or wrong."""
    from botocore import exceptions

    return code_of(error) in _CREDENTIALS or isinstance(
        error,
        exceptions.NoCredentialsError
        | exceptions.PartialCredentialsError
        | exceptions.TokenRetrievalError
        | exceptions.CredentialRetrievalError
        | exceptions.UnauthorizedSSOTokenError,
    )


def code_of(error: BaseException) -> str:
    """Return the error code in an AWS service's response. Return "" if the error contains no response."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    return str((response.get("Error") or {}).get("Code") or "")


def said_by(error: BaseException) -> str:
    """Return the message in an AWS service's response. If the error contains no response, return the error's text."""
    response: Any = getattr(error, "response", None)
    said = (response.get("Error") or {}).get("Message") if isinstance(response, dict) else None
    return str(said or error or type(error).__name__).strip()


def passes(error: BaseException) -> bool:
    """Return whether the same request may succeed later: after throttling, a fault of the AWS service, or a connection
    that was lost or could not be opened.
    """
    from botocore import exceptions, parsers
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import TimeoutError as LateError

    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return code_of(error) in PASSING or status >= 500 or status == 429
    if isinstance(error, exceptions.SSLError | exceptions.ProxyConnectionError | exceptions.NoCredentialsError):
        return False
    # botocore does not wrap the last two, which are raised if a response's body is cut off or late.
    return isinstance(
        error,
        exceptions.HTTPClientError
        | exceptions.EndpointConnectionError
        | parsers.ResponseParserError
        | OSError
        | ProtocolError
        | LateError,
    )


def is_unreached(error: BaseException) -> bool:
    """Return whether no connection to the AWS service could be opened, so that it has not received the request."""
    from botocore import exceptions

    return isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError)


def is_unanswered(error: BaseException) -> bool:
    """Return whether the AWS service may have carried out the request although its response is missing or a fault."""
    if code_of(error):
        status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return int(status) >= 500
    return passes(error) and not is_unreached(error)


def is_missing(error: BaseException) -> bool:
    """Return whether the AWS service reports that the job, log group, repository or image does not exist."""
    code, text = code_of(error), said_by(error)
    if code in _MISSING:
        return True
    return code == "ValidationException" and "not found" in text.lower()


def is_taken(error: BaseException) -> bool:
    """Return whether SageMaker reports that the job's name is in use."""
    return code_of(error) in ("ResourceInUse", "ResourceInUseException")


def is_denied(error: BaseException) -> bool:
    """Return whether the credentials are valid but lack a permission."""
    return code_of(error) in _DENIED


def meaning(error: BaseException) -> str:
    """Return a description of the error in one or more sentences."""
    from botocore import exceptions

    text = said_by(error).rstrip(".")
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return "there are no AWS credentials."
    if isinstance(error, exceptions.ProfileNotFound):
        return f"{text}."
    if is_unreached(error):
        return f"AWS could not be reached: {text}."
    code = code_of(error)
    operation = getattr(error, "operation_name", "")
    if code:
        return f"{operation}: {text} ({code})." if operation else f"{text} ({code})."
    return f"{text}."


def remedy(error: BaseException) -> str:
    """Return what the user can do about an error. Return "" if no remedy is known."""
    from botocore import exceptions

    code, text = code_of(error), said_by(error)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return _NO_CREDENTIALS
    if isinstance(error, exceptions.ProfileNotFound):
        return "`aws configure list-profiles` lists the existing profiles."
    if isinstance(error, exceptions.TokenRetrievalError | exceptions.CredentialRetrievalError) or code in _CREDENTIALS:
        return _LOGIN
    if isinstance(error, exceptions.SSLError):
        return "If a proxy inspects the traffic, set AWS_CA_BUNDLE to the file of its certificates."
    if code in _DENIED:
        return "Allow this action for the caller's role or user; the message names the action."
    if code == "ResourceLimitExceeded":
        return (
            "The account's quota is used up: wait for other jobs, choose another instance type, or request a "
            "higher quota (Service Quotas, Amazon SageMaker)."
        )
    if "assume role" in text.lower() or "RoleArn" in text:
        return "The role must trust sagemaker.amazonaws.com, and the caller needs iam:PassRole for the role."
    if is_unreached(error):
        return "Check the region's name, the network and AWS_ENDPOINT_URL."
    return ""


def explain(error: BaseException) -> str:
    """Return the description of an error, followed by its remedy."""
    return " ".join(part for part in (meaning(error), remedy(error)) if part)
