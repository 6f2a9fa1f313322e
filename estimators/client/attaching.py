"""Find an existing job for ``attach()``, and restore the estimator's settings from the job's record.

The module :mod:`estimators.client.request_builder` does the reverse: it builds a job's request from settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.layout import DEFAULT_BASE_DIR, MLTree
from container.contract.strategies import MPI
from estimators.backends.sagemaker.shipping import is_shipped
from estimators.client.request_builder import SWITCHES
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ConfigurationError, JobNotFoundError
from estimators.job.fleets import DEFAULT
from estimators.job.naming import base_of_name
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.job.settings import Settings
from estimators.records.record import JobRecord


def find_job(
    name: str,
    session: Any = None,
    *,
    dispatcher: str | None = None,
    dispatcher_options: Mapping[str, Any] | None = None,
) -> TrainingJob:
    """Return the handle of a job that has a local record, is on the given dispatcher, or is on SageMaker.

    If the job has no local record and no dispatcher is given, the job is searched on SageMaker. This search needs a
    session or a configured region.

    Args:
        name: The job's name.
        session: The user's boto3 or SageMaker session.
        dispatcher: The dispatcher on which to search for the job if the job has no local record.
        dispatcher_options: The dispatcher's options.

    Raises:
        JobNotFoundError: the job does not exist.
        ConfigurationError: the job has a local record, but does not run at the given dispatcher.
    """
    try:
        job = TrainingJob(JobRecord.open(name))
    except JobNotFoundError as error:
        from estimators.client import adopting

        if dispatcher is not None:
            return adopting.adopt_dispatched(name, dispatcher, dispatcher_options or {})
        return adopting.adopt(name, session, not_here=error)
    if dispatcher is not None and job.dispatcher != dispatcher:
        raise ConfigurationError(
            f"a training job named {name!r} is already on record here, and it runs "
            f"{f'at {job.dispatcher}' if job.dispatcher else 'on this machine'}, not at {dispatcher}. To attach to the "
            f"job at {dispatcher}, set FLEETFIT_HOME to another folder."
        )
    if job.lives_elsewhere and job.dispatcher is not None:
        job._ensure_followed()
    elif job.lives_elsewhere:
        from estimators.backends.sagemaker.aws import supervisor_environment

        job._ensure_followed(supervisor_environment(session))
    return job


def settings_of(record: JobRecord, session: Any = None, *, passes_model_dir: bool) -> Settings:
    """Return the settings with which an estimator starts a job like the recorded job.

    The ``source_dir`` of the settings is the copy of the code in the record.

    Args:
        record: The job's record.
        session: The boto3 or SageMaker session that new jobs will use.
        passes_model_dir: Whether the estimator has an argument ``model_dir``.
    """
    spec = TrainingJobSpec.from_request(record.read_request())
    options = JobOptions.from_dict(record.read_options())
    decoded = spec.decoded_hyperparameters
    user = spec.user_hyperparameters
    if (
        spec.algorithm.image is not None and spec.program is None
    ):  # use the recorded texts, because decoding and encoding the values again may change the texts
        user = {name: spec.hyperparameters[name] for name in user}
    model_dir: Any = None
    if passes_model_dir:
        model_dir = user.pop(codec.MODEL_DIR, False)
        if isinstance(model_dir, str) and _is_default(model_dir, spec):
            model_dir = None  # the default path contains the job's name, so let the next job determine its own default
    source = record.source_dir
    resources, checkpoint, vpc = spec.resources, spec.checkpoint, spec.vpc
    log_level = decoded.get(codec.LOG_LEVEL)
    image = spec.algorithm.others.get("TrainingImageConfig") or {}
    credentials = image.get("TrainingRepositoryAuthConfig") or {}
    switches: dict[str, Any] = {
        name: (spec.others.get(member) or {}).get(key) for name, (member, key) in SWITCHES.items()
    }
    return Settings(
        role=spec.role or None,
        instance_count=spec.instance_count,
        instance_type=spec.instance_type or DEFAULT,
        keep_alive_period_in_seconds=resources.keep_alive_s,
        volume_size=resources.volume_size_gb or 30,
        volume_kms_key=resources.volume_kms_key,
        training_plan=resources.training_plan,
        instance_placement_config=resources.others.get("InstancePlacementConfig"),
        entry_point=spec.program,
        source_dir=str(source) if source.is_dir() else _source_on_s3(spec),
        hyperparameters=user,
        arguments=decoded.get(codec.ARGUMENTS),
        environment=spec.environment,
        container_log_level=log_level if isinstance(log_level, int) else 20,
        container_entry_point=None if is_shipped(spec) else spec.algorithm.entry_point or None,
        container_arguments=spec.algorithm.arguments or None,
        image_uri=spec.algorithm.image,
        training_repository_access_mode=image.get("TrainingRepositoryAccessMode"),
        training_repository_credentials_provider_arn=credentials.get("TrainingRepositoryCredentialsProviderArn"),
        framework_version=options.framework_version,
        py_version=options.py_version,
        input_mode=spec.algorithm.input_mode,
        output_path=_output_path(spec, record),
        output_kms_key=spec.output.kms_key,
        disable_output_compression=spec.output.compression == "NONE",
        model_dir=model_dir,
        max_run=spec.stopping.max_run_s or 86400,
        use_spot_instances=bool(spec.spot),
        max_wait=spec.stopping.max_wait_s,
        max_retry_attempts=spec.retry.max_attempts if spec.retry is not None else None,
        checkpoint_s3_uri=checkpoint.uri if checkpoint is not None else None,
        checkpoint_local_path=checkpoint.local_path if checkpoint is not None else None,
        metric_definitions=spec.algorithm.metric_definitions,
        enable_sagemaker_metrics=spec.algorithm.enable_metrics_time_series,
        subnets=vpc.subnets if vpc is not None else None,
        security_group_ids=vpc.security_group_ids if vpc is not None else None,
        encrypt_inter_container_traffic=spec.encrypt_traffic,
        enable_network_isolation=spec.network_isolation,
        distribution=spec.strategy,
        base_job_name=base_of_name(spec.name),
        sagemaker_session=session,
        tags=spec.tags,
        hang_timeout=spec.hang_timeout,
        run_options=dataclasses.replace(options.run_options, faults=()),
        **switches,
    )


def _source_on_s3(spec: TrainingJobSpec) -> str | None:
    place = spec.submit_directory
    return place if place is not None and place.startswith("s3://") else None


def _is_default(model_dir: str, spec: TrainingJobSpec) -> bool:
    if isinstance(spec.strategy, MPI):
        return model_dir == MLTree(Path(DEFAULT_BASE_DIR)).model.as_posix()
    return model_dir.endswith(f"/{spec.name}/model")


def _output_path(spec: TrainingJobSpec, record: JobRecord) -> str | None:
    """Return the output path that the user gave, or None if the user gave no output path."""
    return None if spec.output.path == record.path.parent.as_uri() else spec.output.path
