"""Create the local record of a SageMaker tuning job that was started from another machine or with another SDK."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from estimators.backends.sagemaker.aws import find_region, profile_of, supervisor_environment
from estimators.backends.sagemaker.mirror import given
from estimators.backends.sagemaker.options import SageMakerOptions
from estimators.backends.sagemaker.tuning import SageMakerTuning
from estimators.client import launch
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError, UnsupportedError
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.tuning import running
from estimators.tuning.config import TuningSpec
from estimators.tuning.record import TuningRecord
from estimators.tuning.request import request_of, trial_request_of


def adopt(name: str, session: Any = None, *, not_here: JobNotFoundError) -> TuningRecord:
    """Find a tuning job on SageMaker, create its local record, and start the process that follows the tuning job.

    Args:
        name: The tuning job's name.
        session: The user's boto3 or SageMaker session.
        not_here: The error about the missing local record.

    Raises:
        JobNotFoundError: SageMaker does not have the tuning job, or cannot be reached. The message is the one of
            ``not_here``, followed by the reason. If no region is configured, ``not_here`` itself is raised.
        UnsupportedError: the tuning job has several training job definitions, or has no ranges.
    """
    if session is None and find_region() is None:
        raise not_here
    known = SageMakerOptions(region=find_region(session), profile=profile_of(session))
    options = JobOptions(backend="ml", backend_options=known.to_dict())
    try:
        service = SageMakerTuning(options)
    except ConfigurationError as error:
        raise JobNotFoundError(f"{not_here} SageMaker was not asked: {error}") from not_here
    try:
        answer = service.describe(name)
    except Exception as error:  # noqa: BLE001 - the service explains every error
        text = service.explain(error)[0]
        raise JobNotFoundError(f"{not_here} SageMaker could not be asked: {text}") from not_here
    if answer is None:
        raise JobNotFoundError(f"{not_here} SageMaker has no such tuning job either.") from not_here
    definition = answer.get("TrainingJobDefinition")
    if definition is None:
        raise UnsupportedError(
            f"tuning job {name!r} has several training job definitions; HyperparameterTuner supports only one."
        )
    spec = TuningSpec.from_config(name, answer["HyperParameterTuningJobConfig"], answer.get("WarmStartConfig"))
    definition = {member: given(member, value) for member, value in definition.items()}
    trial = TrainingJobSpec.from_request(trial_request_of(name, definition, spec))

    # If another process has created the record meanwhile, use this record.
    with (
        contextlib.suppress(JobExistsError),
        running.creating(
            spec,
            estimator="Estimator",
            request=request_of(spec, trial.to_request()),
            env=supervisor_environment(session),
            own={"taken": True},
        ) as template,
    ):
        launch.fill(template, trial, options, None, time.time())
    return TuningRecord.open(name)
