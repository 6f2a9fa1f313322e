"""Answer requests to the endpoint: verify the signature, find the operation in a table, and return its response."""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from estimators.job import fleets
from estimators.job.errors import FleetfitError
from estimators.job.validation import LOCAL_RELAXATIONS
from estimators.service import identity, metrics, protocol, signing, web
from estimators.service.errors import ServiceError
from estimators.service.logs import Logs
from estimators.service.models import Model, unknown_operation
from estimators.service.protocol import Answer
from estimators.service.records import Jobs
from estimators.service.settings import DEFAULT_REGION, Keys
from estimators.service.signing import Headers
from estimators.service.training import Training
from estimators.service.tuning import TuningJobs

#: The maximum size of a body in bytes. The largest possible CreateTrainingJob request has about 700 kB.
BODY_LIMIT = 2 << 20

Operation = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_log = logging.getLogger(__name__)


def operations(training: Training, tuning: TuningJobs, logs: Logs, jobs: Jobs) -> dict[str, dict[str, Operation]]:
    """Return the endpoint's operations, by service name and operation name.

    An operation is a function that takes the parameters of a request and returns the result.
    """
    return {
        "sagemaker": {
            "CreateTrainingJob": training.create,
            "DescribeTrainingJob": training.describe,
            "StopTrainingJob": training.stop,
            "ListTrainingJobs": training.list_jobs,
            "UpdateTrainingJob": training.update,
            "DeleteTrainingJob": training.delete,
            "ListTags": training.list_tags,
            "AddTags": training.add_tags,
            "DeleteTags": training.delete_tags,
            "CreateHyperParameterTuningJob": tuning.create,
            "DescribeHyperParameterTuningJob": tuning.describe,
            "StopHyperParameterTuningJob": tuning.stop,
            "ListHyperParameterTuningJobs": tuning.list_jobs,
            "ListTrainingJobsForHyperParameterTuningJob": tuning.list_training_jobs,
        },
        "logs": {
            "DescribeLogStreams": logs.describe_streams,
            "GetLogEvents": logs.get_events,
            "FilterLogEvents": logs.filter_events,
        },
        "cloudwatch": {"GetMetricStatistics": functools.partial(metrics.statistics, jobs)},
        "sts": {"GetCallerIdentity": identity.caller_identity},
        "iam": {"GetRole": identity.get_role, "SimulatePrincipalPolicy": identity.simulate},
    }


class Endpoint:
    """An ASGI application that answers requests. Any number of threads may call the application at the same time.

    Args:
        keys: The keys that requests must be signed with.
        table: The operations, as returned by :func:`operations`.
        clock: A function that returns the current time in UTC.
        region: The endpoint's region.
        body_s: The maximum time for reading a request's body, in seconds.
        bodies: The maximum number of bodies that are read at the same time. Further requests wait until their bodies
            can be read. This limits the memory for bodies whose signatures are not verified yet.
    """

    def __init__(
        self,
        keys: Keys,
        table: Mapping[str, Mapping[str, Operation]],
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
        region: str = DEFAULT_REGION,
        body_s: float = 30.0,
        bodies: int = 32,
    ) -> None:
        self._keys = keys
        self._table = table
        self._clock = clock
        self._region = region
        self._body_s = body_s
        self._reading = asyncio.Semaphore(bodies)
        self._models = {service: Model(service, names) for service, names in table.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request, and answer it. The request's size and the time to read it are limited."""
        request = Request(scope, receive)
        headers = request.headers.items()
        target = b"?".join(part for part in (scope["raw_path"], scope["query_string"]) if part).decode("ascii")
        try:
            signing.claim(headers, self._keys, self._clock(), self._region)  # without the key's id, no body is read
            with anyio.fail_after(self._body_s):
                async with self._reading:
                    body = await web.read_body(request, BODY_LIMIT)
        except ClientDisconnect:
            return
        except ServiceError as error:
            answer = _refusal(error, headers)
        except TimeoutError:
            answer = Answer(408, "text/plain", b"the request takes too long.", {"connection": "close"})
        else:
            if body is None:
                answer = Answer(413, "text/plain", b"the body is too large.", {"connection": "close"})
            else:
                answer = await run_in_threadpool(self.respond, request.method, target, headers, body)
        about = {**answer.headers, "x-amzn-requestid": str(uuid.uuid4())}
        await Response(answer.body, answer.status, about, answer.content_type)(scope, receive, send)

    def respond(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Answer a request. If an error occurs, return an error response instead of raising the error.

        Args:
            method: The HTTP method, such as GET or POST.
            target: The path and the query, as received.
            headers: The headers of the request.
            body: The body of the request.
        """
        try:
            claimed = signing.verify(method, target, headers, body, self._keys, self._clock(), self._region)
            if method != "POST" or target.partition("?")[0] != "/":
                raise ServiceError("UnknownOperationException", "a request must be a POST to /.", 404)
            return self._call(protocol.read_call(claimed.headers, body, claimed.service))
        except ServiceError as error:
            failed = error
        except FleetfitError as error:
            failed = ServiceError("InternalFailure", str(error), 500)
        except OSError as error:
            _log.exception("a request failed")
            failed = ServiceError("InternalFailure", f"the endpoint's machine: {error.strerror or error}.", 500)
        except Exception:  # noqa: BLE001 - a fault of fleetfit must not stop the endpoint
            _log.exception("a request failed")
            failed = ServiceError("InternalFailure", "the endpoint failed; its log has the traceback.", 500)
        return _refusal(failed, headers)

    def _call(self, call: protocol.Call) -> Answer:
        model = self._models.get(call.service or "")
        function = self._table.get(call.service or "", {}).get(call.operation)
        if model is None or function is None:
            raise unknown_operation(model, call.operation)
        request = protocol.parameters(call, model)
        model.check(call.operation, request, spare=_spare(call.operation, request))
        given = {name: value for name, value in request.items() if value is not None}
        return protocol.render(call, model, function(given))


def _refusal(error: ServiceError, headers: Headers) -> Answer:
    """Return the response for an error, in the protocol that the request uses."""
    named = {name.lower(): value for name, value in headers}
    json_version = None
    if "x-amz-target" in named or named.get("content-type", "").startswith("application/x-amz-json"):
        json_version = "1.0" if "json-1.0" in named.get("content-type", "") else "1.1"
    prefix = named.get("x-amz-target", "").rpartition(".")[0]
    return protocol.render_error(
        error, json_version=json_version, query_service=protocol.TARGETS.get(prefix) == "cloudwatch"
    )


def _spare(operation: str, request: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of the members of a request whose values are not checked against AWS's rules here.

    Only a request for a job on a local instance type has such members. :mod:`~estimators.service.translation` checks
    their values later.
    """
    prefix = {"CreateTrainingJob": "", "CreateHyperParameterTuningJob": "TrainingJobDefinition"}.get(operation)
    if prefix is None:
        return frozenset()
    job = request.get(prefix) if prefix else request
    resources = job.get("ResourceConfig") if isinstance(job, Mapping) else None
    asked = resources.get("InstanceType") if isinstance(resources, Mapping) else None
    if not isinstance(asked, str) or not fleets.is_own(asked):
        return frozenset()
    return frozenset(f"{prefix}.{item.path}" if prefix else item.path for item in LOCAL_RELAXATIONS)
