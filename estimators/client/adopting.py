"""Create local records for jobs that another machine or another SDK has started on SageMaker or on a dispatcher.

A dispatcher is a machine or a Ray cluster that runs a job's supervisor, the process that starts and watches the job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from container.contract import rules
from estimators.backends.sagemaker import mirror
from estimators.backends.sagemaker.aws import Aws, find_region, profile_of, supervisor_environment
from estimators.backends.sagemaker.explaining import explain, is_missing
from estimators.backends.sagemaker.options import SageMakerOptions
from estimators.client.launch import fill, pinned, start
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError, JobUnreachableError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord

#: Maximum time to wait for a dispatcher's first message about a job, in seconds. fleetfit's code may have to be copied
#: to the dispatcher first.
_FIRST_NEWS_S = 60.0
_LOOK_S = 0.02


def adopt(name: str, session: Any = None, *, not_here: JobNotFoundError) -> TrainingJob:
    """Find a job on SageMaker, create a local record for the job, and start a local supervisor that follows the job.

    Args:
        name: The job's name.
        session: The user's boto3 or SageMaker session.
        not_here: The error for a job without a record on this machine. This error is raised if no session is given and
            no region is configured, because no request can then be sent to SageMaker.

    Raises:
        JobNotFoundError: SageMaker does not have the job, or the request to SageMaker failed.
    """
    if session is None and find_region() is None:
        raise not_here
    try:
        aws = Aws(session=session)
        answer = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
    except ConfigurationError as error:
        raise JobNotFoundError(f"{not_here} SageMaker was not asked: {error}") from not_here
    except Exception as error:  # noqa: BLE001 - the error is explained in the raised message
        place = aws.region
        if is_missing(error):
            raise JobNotFoundError(f"{not_here} SageMaker in {place} has no such job either.") from not_here
        raise JobNotFoundError(f"{not_here} SageMaker in {place} could not be asked: {explain(error)}") from not_here
    spec = TrainingJobSpec.from_request(mirror.request_of(answer))
    known = SageMakerOptions(region=aws.region, profile=profile_of(session))
    options = JobOptions(backend="ml", backend_options=known.to_dict())
    try:
        record = JobRecord.create(name)
    except JobExistsError:
        return TrainingJob.attach(name)  # another process was quicker
    try:
        now = time.time()
        fill(record, spec, options, None, now)
        status = statuses.mirrored(statuses.new_status(spec.to_request(), now), mirror.status_of(answer), now)
        # The supervisor sets the final status after it has downloaded the logs.
        status = {**status, "TrainingJobStatus": "InProgress"} if mirror.is_over(answer) else status
        record.write_status(statuses.with_own(status, elsewhere=True, taken=True))
    except BaseException:
        record.discard()
        raise
    process = start(record, supervisor_environment(session))
    return TrainingJob(record, process=process)


def adopt_dispatched(name: str, dispatcher: str, options: Mapping[str, Any]) -> TrainingJob:
    """Find a job on a dispatcher, create a local record for the job, and start a local supervisor that follows the job.

    Args:
        name: The job's name.
        dispatcher: The dispatcher, as in ``RunOptions(dispatcher=…)``.
        options: The dispatcher's options.

    Raises:
        ConfigurationError: the dispatcher's name or an option is wrong.
        JobNotFoundError: the dispatcher does not have the job.
        JobUnreachableError: the dispatcher cannot be reached.
    """
    from estimators.backends import dispatchers

    chosen = JobOptions(dispatcher=dispatcher, dispatcher_options=options)
    dispatchers.load(dispatcher).check(dispatcher, chosen.dispatcher_options)
    try:
        record = JobRecord.create(name)
    except JobExistsError:
        return TrainingJob.attach(name)  # another process was quicker
    try:
        record.write_options(rules.to_dict(pinned(chosen)))
        status = statuses.new_status({"TrainingJobName": name}, time.time())
        record.write_status(statuses.with_own(status, elsewhere=True, taken=True))
        process = start(record)
    except BaseException:
        record.discard()
        raise
    job = TrainingJob(record, process=process)
    until = time.monotonic() + _FIRST_NEWS_S
    while statuses.last_seen(record.stored_status()) is None:
        own = (record.stored_status() or {}).get(statuses.OWN, {})
        gone = process.poll() is not None
        if own.get("missing") or gone or time.monotonic() > until:
            process.terminate()
            process.wait()
            record.discard()
            if own.get("missing"):
                raise JobNotFoundError(f"{dispatcher}: there is no training job {name!r}.")
            raise JobUnreachableError(f"dispatcher {dispatcher}: {own.get('unreached') or 'it does not answer'}.")
        time.sleep(_LOOK_S)
    return job
