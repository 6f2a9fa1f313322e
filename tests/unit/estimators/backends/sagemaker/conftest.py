"""AWS for the tests of the SageMaker backend: clients whose answers are botocore's Stubber's."""

from __future__ import annotations

from aws_clients import environment, stub

__all__ = ["environment", "stub"]
