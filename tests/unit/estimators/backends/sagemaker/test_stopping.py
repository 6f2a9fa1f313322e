"""How often SageMaker is asked to create and to stop a job."""

from __future__ import annotations

import asyncio
import datetime
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ProxyConnectionError,
    SSLError,
)

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.sagemaker.backend import SageMakerBackend, _State
from estimators.job.request import Algorithm, JobOptions, OutputConfig, Resources, TrainingJobSpec
from estimators.records.record import JobRecord

pytestmark = pytest.mark.leaves("files")  # results of threads come through a pipe that goes with the loop


class Service:
    """SageMaker, which is not reached at first.

    Attributes:
        asked: How often it was asked to stop a job.
        unreached: How often it is not reached.
        error: What the client raises then.
    """

    def __init__(self, unreached: int = 0, error: Exception | None = None) -> None:
        self.asked = 0
        self.unreached = unreached
        self.error = error or ConnectionResetError()

    def stop_training_job(self, **request: Any) -> dict[str, str]:
        self.asked += 1
        if self.asked <= self.unreached:
            raise self.error
        return {"TrainingJobArn": "arn"}

    create_training_job = stop_training_job


@pytest.fixture
def backend(asyncio_loop: AsyncioLoop, tmp_path: Path) -> Iterator[SageMakerBackend]:
    """The backend of a job that SageMaker has."""
    record = JobRecord.create("job-1", tmp_path)
    spec = TrainingJobSpec(
        name="job-1",
        algorithm=Algorithm(image="image:1"),
        hyperparameters={},
        output=OutputConfig(path="s3://bucket"),
        resources=Resources(instance_type="ml.m5.xlarge", instance_count=1),
    )
    options = JobOptions(backend="ml", backend_options={"poll_seconds": 0.001})
    made = SageMakerBackend(asyncio_loop, record, spec, options, asyncio.Queue())
    made._state = _State.FOLLOWING
    yield made
    made.cleanup()
    record.release()


def serve(backend: SageMakerBackend, unreached: int = 0, error: Exception | None = None) -> Service:
    service = Service(unreached, error)
    backend._aws = types.SimpleNamespace(client=lambda name: service)  # type: ignore[assignment]
    return service


def answered(code: str, message: str = "", **more: Any) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, **more}, "Operation")  # type: ignore[typeddict-item]


def finish(backend: SageMakerBackend) -> None:
    assert backend._stopping is not None
    backend.loop.run(asyncio.wait_for(asyncio.wait((backend._stopping,)), 20))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        EndpointConnectionError(endpoint_url="https://api.sagemaker"),  # the network is down: the job goes on and bills
        ConnectTimeoutError(endpoint_url="https://api.sagemaker"),
        NoCredentialsError(),
        SSLError(endpoint_url="https://api.sagemaker", error="EOF occurred in violation of protocol"),
        ProxyConnectionError(proxy_url="http://proxy"),
        answered("ThrottlingException"),
        answered("ExpiredTokenException"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_request_is_repeated_until_it_is_answered_however_often_a_stop_is_wanted(
    error: Exception, backend: SageMakerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_reconnect", lambda: None)
    service = serve(backend, unreached=2, error=error)
    backend.stop()
    first = backend._stopping
    backend.stop()
    assert backend._stopping is first
    finish(backend)
    assert service.asked == 3
    backend.stop()
    finish(backend)
    assert service.asked == 4, "the last one was answered"


def test_a_job_that_is_not_followed_any_more_is_not_stopped(backend: SageMakerBackend) -> None:
    service = serve(backend)
    backend.stop()
    backend._state = _State.ENDED
    finish(backend)
    assert service.asked == 0


def test_a_job_that_cannot_be_stopped_any_more_is_not_asked_again(backend: SageMakerBackend) -> None:
    service = serve(backend, unreached=2, error=answered("ValidationException", "it is Completed"))
    backend.stop()
    finish(backend)
    assert service.asked == 1


@pytest.mark.parametrize(
    ("error", "may_exist"),
    [
        (EndpointConnectionError(endpoint_url="https://api.sagemaker"), False),
        (ConnectionResetError(), True),
        (answered("ThrottlingException"), False),
        (answered("InternalFailure", ResponseMetadata={"HTTPStatusCode": 500}), True),
    ],
    ids=("not reached", "no answer", "throttled", "a fault"),
)
def test_a_job_is_created_when_sagemaker_is_reached_again(
    error: Exception, may_exist: bool, backend: SageMakerBackend
) -> None:
    service = serve(backend, unreached=2, error=error)
    assert backend._create({}) == "arn"
    assert (service.asked, backend._may_exist) == (3, may_exist)


def test_a_job_whose_creation_was_not_answered_is_found_when_sagemaker_can_be_asked(backend: SageMakerBackend) -> None:
    """The name is taken by our own request: its description is asked for again, and the job is followed."""
    create = serve(backend, unreached=1, error=answered("ResourceInUse"))
    describe = Service(unreached=2, error=answered("ThrottlingException"))
    request = backend.spec.to_request()

    def describe_training_job(**_: Any) -> dict[str, Any]:
        describe.stop_training_job()
        return {**request, "TrainingJobArn": "arn", "CreationTime": datetime.datetime.now(datetime.timezone.utc)}

    create.describe_training_job = describe_training_job  # type: ignore[attr-defined]
    assert backend._create(request) == "arn" and describe.asked == 3
