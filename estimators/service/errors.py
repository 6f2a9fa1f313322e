"""What an operation answers instead of a result."""

from __future__ import annotations


class ServiceError(Exception):
    """An error in the form that AWS's clients read.

    Args:
        code: AWS's name of the error: ``ValidationException``.
        message: What happened.
        status: The HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code = code
        self.message = message
        self.status = status
        super().__init__(f"{code}: {message}")


def invalid(message: str) -> ServiceError:
    """The request makes no sense, or asks for what cannot be had here."""
    return ServiceError("ValidationException", message)


def not_found() -> ServiceError:
    """SageMaker's answer for a job that does not exist."""
    return invalid("Requested resource not found.")


def malformed(message: str) -> ServiceError:
    """The body cannot be read."""
    return ServiceError("SerializationException", message)


def denied(message: str) -> ServiceError:
    """What AWS would not permit, and is not there to be permitted here."""
    return ServiceError("AccessDenied", message, 403)
