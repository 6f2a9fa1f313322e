"""Define the errors that the endpoint's operations raise."""

from __future__ import annotations


class ServiceError(Exception):
    """An error with the values that AWS's clients expect in an error response.

    Args:
        code: AWS's name of the error, such as ``ValidationException``.
        message: The text of the error.
        status: The HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code = code
        self.message = message
        self.status = status
        super().__init__(f"{code}: {message}")


def invalid(message: str) -> ServiceError:
    """Return the error for a request that is not valid, or that requests a feature that is not available here."""
    return ServiceError("ValidationException", message)


def not_found() -> ServiceError:
    """Return SageMaker's error for a job that does not exist."""
    return invalid("Requested resource not found.")


def malformed(message: str) -> ServiceError:
    """Return the error for a body that cannot be parsed."""
    return ServiceError("SerializationException", message)


def denied(message: str) -> ServiceError:
    """Return the error for an operation that is not permitted."""
    return ServiceError("AccessDenied", message, 403)
