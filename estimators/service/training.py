"""Implement the operations on training jobs: create, describe, list, stop, update, delete and tag."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from container.system.removing import remove_tree
from estimators.client import ipc_client, launch
from estimators.job.errors import ConfigurationError, JobExistsError, JobUnreachableError
from estimators.job.secrets import mask_request
from estimators.records.record import JobRecord
from estimators.service import settings
from estimators.service.errors import ServiceError, invalid, not_found
from estimators.service.paging import matches, page
from estimators.service.queue import EndpointQueue
from estimators.service.records import Job, Jobs
from estimators.service.source import bring_source
from estimators.service.storage import Storage
from estimators.service.translation import Local, translate

#: Members that DescribeTrainingJob always returns.
_ALWAYS = {
    "EnableNetworkIsolation": False,
    "EnableInterContainerTrafficEncryption": False,
    "EnableManagedSpotTraining": False,
    "ProfilingStatus": "Disabled",
}

_MOST_TAGS = 50
_SORTED = {
    "Name": lambda job: (job.name,),
    "CreationTime": lambda job: (job.created, job.name),
    "Status": lambda job: (str(job.status.get("TrainingJobStatus")), job.created, job.name),
}


class Training:
    """The operations on training jobs.

    Args:
        jobs: The jobs on record.
        queue: The queue that starts jobs.
        storage: The S3 server of the endpoint.
        local: The backend for jobs, and the backend's settings.
    """

    def __init__(self, jobs: Jobs, queue: EndpointQueue, storage: Storage, local: Local) -> None:
        self._jobs = jobs
        self._queue = queue
        self._storage = storage
        self._local = local
        self._creating: set[str] = set()
        self._lock = threading.Lock()

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a CreateTrainingJob request."""
        name = str(request["TrainingJobName"])
        check_tags(request.get("Tags") or ())
        spec, options = translate(request, self._local)
        now = time.time()
        try:
            with self._claimed(name):
                # The record is filled before it is visible: if the endpoint is killed, the job exists completely or
                # not at all.
                record = JobRecord.stage(name, self._jobs.home)
                try:
                    bring_source(spec, record, self._storage)
                    launch.fill(record, spec, options, None, now)
                    record.write_status({**(record.stored_status() or {}), "TrainingJobArn": self._jobs.arn(name)})
                    self._jobs.write_own(record, {"request": dict(request)})
                    self._queue.submit(record, name, request)
                except BaseException:
                    record.discard()
                    raise
        except JobExistsError:
            raise ServiceError(
                "ResourceInUse",
                "Training job names must be unique within an AWS account and region, and a training job with this name "
                f"already exists ({self._jobs.arn(name)})",
            ) from None
        except ConfigurationError as error:
            raise invalid(str(error)) from error
        return {"TrainingJobArn": self._jobs.arn(name)}

    @contextlib.contextmanager
    def _claimed(self, name: str) -> Iterator[None]:
        """Reserve a name while its job is created, so that a repeated request does not create the job twice.

        Raises:
            JobExistsError: the job is already being created.
        """
        with self._lock:
            if name in self._creating:
                raise JobExistsError(f"training job {name!r} is being created.")
            self._creating.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._creating.discard(name)

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a DescribeTrainingJob request."""
        job = self._jobs.get(request["TrainingJobName"])
        asked = mask_request(job.request)
        output = asked.get("OutputDataConfig") or {}
        path = str(output.get("S3OutputPath") or "").rstrip("/")
        answer = {
            **_ALWAYS,
            "ModelArtifacts": {"S3ModelArtifacts": f"{path}/{job.name}/output/model.tar.gz" if path else ""},
            **asked,
            **job.status,
        }
        # the SDK's attach() reads these members
        answer["OutputDataConfig"] = {"KmsKeyId": "", "CompressionType": "GZIP", **output}
        changes = job.own.get("changes") or {}
        if "KeepAlivePeriodInSeconds" in changes:
            answer["ResourceConfig"] = {**(asked.get("ResourceConfig") or {}), **changes}
        # Neither JSON nor CloudWatch supports NaN and infinity. Such final values are only in the log.
        final = [item for item in job.status.get("FinalMetricDataList") or () if math.isfinite(item["Value"])]
        answer["FinalMetricDataList"] = final or None
        answer["TrainingJobArn"] = self._jobs.arn(job.name)
        return answer

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a StopTrainingJob request."""
        job = self._jobs.get(request["TrainingJobName"])
        if job.over:
            raise invalid(
                f"The request was rejected because the training job is in status {job.status.get('TrainingJobStatus')}."
            )
        if self._queue.withdraw(job.name):
            return {}
        try:
            answer = ipc_client.request(job.record, ipc_client.stop_message(None, "StopTrainingJob was called"))
        except JobUnreachableError as error:
            if self._jobs.get(job.name).over:
                return {}
            raise ServiceError("InternalFailure", str(error), 500) from error
        if not answer.get("ok"):
            raise ServiceError("InternalFailure", str(answer.get("error", answer)), 500)
        return {}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a DeleteTrainingJob request: remove the job's record, including the logs.

        Models and checkpoints in S3 are kept.
        """
        job = self._jobs.get(request["TrainingJobName"])
        if not job.over:
            raise ServiceError(
                "ResourceInUse",
                f"The training job is in status {job.status.get('TrainingJobStatus')}. Stop it first.",
            )
        # The record is renamed first, so that no reader sees a partial record and the job's name is free at once.
        aside = job.record.path.with_name(f".{job.name}.{os.urandom(6).hex()}")
        try:
            os.rename(job.record.path, aside)
        except FileNotFoundError:
            raise not_found() from None
        self._jobs.forget(job.name)
        remove_tree(aside, ignore_errors=True)
        return {}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an UpdateTrainingJob request. Only KeepAlivePeriodInSeconds can be changed."""
        name = self._jobs.get(request["TrainingJobName"]).name
        for member in ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig"):
            if request.get(member) is not None:
                raise invalid(f"a fleetfit endpoint does not support {member}: only AWS has this service.")
        resources = request.get("ResourceConfig")
        if resources is not None:
            with self._jobs.changing(name) as (_, own):
                own["changes"] = {**(own.get("changes") or {}), **resources}
        return {"TrainingJobArn": self._jobs.arn(name)}

    # --- the list ---

    def list_jobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ListTrainingJobs request."""
        for member in ("WarmPoolStatusEquals", "TrainingPlanArnEquals"):
            if request.get(member) is not None:
                return {"TrainingJobSummaries": []}  # no job here has a warm pool or a training plan
        shown, more = page(
            (job for job in self._jobs.all() if _matches(job, request)),
            _SORTED[request.get("SortBy", "CreationTime")],
            request,
        )
        summaries = [{**job.status, "TrainingJobArn": self._jobs.arn(job.name)} for job in shown]
        return {"TrainingJobSummaries": summaries, **more}

    # --- tags ---

    def list_tags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a ListTags request."""
        tags = self._of_arn(request["ResourceArn"]).tags
        shown, more = page(tags, lambda tag: (tag["Key"],), request, default=_MOST_TAGS)
        return {"Tags": shown, **more}

    def add_tags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an AddTags request. A tag with an existing key replaces the existing value."""
        check_tags(request["Tags"])
        return {"Tags": self._change_tags(request["ResourceArn"], added=request["Tags"])}

    def delete_tags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a DeleteTags request."""
        self._change_tags(request["ResourceArn"], removed=request["TagKeys"])
        return {}

    def _change_tags(
        self, arn: str, added: Iterable[Mapping[str, str]] = (), removed: Iterable[str] = ()
    ) -> list[dict[str, str]]:
        with self._jobs.changing(self._of_arn(arn).name) as (job, own):
            values = {tag["Key"]: tag["Value"] for tag in (*job.tags, *added)}
            tags = [{"Key": key, "Value": value} for key, value in values.items() if key not in removed]
            if len(tags) > _MOST_TAGS:
                raise invalid(f"a training job has at most {_MOST_TAGS} tags.")
            own["tags"] = tags
        return tags

    def _of_arn(self, arn: str) -> Job:
        kind, _, name = arn.rpartition(":")[2].partition("/")
        if kind != "training-job" or arn.lower() != settings.job_arn(self._jobs.region, name).lower():
            raise invalid(f"there is no such resource here: {arn[:200]}.")
        return self._jobs.get(name)


def _matches(job: Job, request: Mapping[str, Any]) -> bool:
    modified = float(job.status.get("LastModifiedTime") or 0.0)
    return matches(request, job.name, job.status.get("TrainingJobStatus"), job.created, modified)


def check_tags(tags: Iterable[Mapping[str, str]]) -> None:
    """Check that no key occurs twice in a list of tags.

    Raises:
        ServiceError: a key occurs twice.
    """
    twice = [key for key, times in collections.Counter(tag["Key"] for tag in tags).items() if times > 1]
    if twice:
        raise invalid(f"Duplicate tag keys are not allowed: {', '.join(map(repr, twice[:5]))}.")
