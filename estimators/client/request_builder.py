"""From an estimator's settings to the two values that describe a job: :class:`TrainingJobSpec` and
:class:`RunOptions`.

What the SageMaker SDK 2.x would put into its request is put here too (``session.py``, ``_get_train_request``;
``estimator.py``, ``_script_mode_hyperparam_update``; ``tensorflow/estimator.py``, ``_default_s3_path``).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.strategies import MPI
from container.system.locations import path_here
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import fleet_name
from estimators.job.inputs import model_channel, normalise_uri
from estimators.job.request import (
    Algorithm,
    Channel,
    CheckpointConfig,
    JobOptions,
    OutputConfig,
    Resources,
    RetryStrategy,
    StoppingCondition,
    TrainingJobSpec,
    VpcConfig,
)
from estimators.job.settings import Settings
from estimators.records.record import jobs_folder

#: Stands for the role of jobs that no role is needed for, in the form of one.
PLACEHOLDER_ROLE = "arn:aws:iam::000000000000:role/fleetfit-local"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """What a job's code is to its containers.

    Attributes:
        program: The entry point.
        submit_directory: Where the code is: ``file://`` of a folder, or an archive on S3.
    """

    program: str
    submit_directory: str


def build_spec(
    settings: Settings,
    *,
    name: str,
    channels: tuple[Channel, ...],
    code: Code | None,
    passes_model_dir: bool,
    home: str | Path | None = None,
    experiment: dict[str, str] | None = None,
) -> TrainingJobSpec:
    """Build the job.

    Args:
        settings: What the estimator was told.
        name: The job's name.
        channels: The inputs.
        code: The user's code; None when the image brings its own.
        passes_model_dir: Whether the script is passed ``--model_dir`` (TensorFlow's estimator does).
        home: Instead of ``$FLEETFIT_HOME``.
        experiment: ``ExperimentConfig``.

    Raises:
        ConfigurationError: the settings contradict each other.
    """
    output = output_path(settings, home)
    others = _other_members(settings)
    if experiment:
        others["ExperimentConfig"] = dict(experiment)
    return TrainingJobSpec(
        name=name,
        role=_role(settings),
        algorithm=_algorithm(settings),
        hyperparameters=build_hyperparameters(
            settings, name=name, code=code, passes_model_dir=passes_model_dir, home=home
        ),
        inputs=_inputs(settings, channels),
        output=OutputConfig(
            path=output,
            kms_key=settings.output_kms_key,
            compression="NONE" if settings.disable_output_compression else None,
        ),
        resources=Resources(
            instance_type=settings.instance_type,
            instance_count=settings.instance_count,
            volume_size_gb=settings.volume_size,
            volume_kms_key=settings.volume_kms_key,
            keep_alive_s=settings.keep_alive_period_in_seconds,
            training_plan=settings.training_plan,
            others={"InstancePlacementConfig": settings.instance_placement_config}
            if settings.instance_placement_config
            else {},
        ),
        vpc=VpcConfig(subnets=settings.subnets, security_group_ids=settings.security_group_ids or ())
        if settings.subnets
        else None,
        stopping=StoppingCondition(max_run_s=settings.max_run, max_wait_s=settings.max_wait),
        tags=settings.tags,
        network_isolation=settings.enable_network_isolation or None,
        encrypt_traffic=settings.encrypt_inter_container_traffic or None,
        spot=settings.use_spot_instances or None,
        checkpoint=CheckpointConfig(
            uri=_location(settings.checkpoint_s3_uri), local_path=settings.checkpoint_local_path
        )
        if settings.checkpoint_s3_uri
        else None,
        environment=settings.environment,
        retry=RetryStrategy(max_attempts=settings.max_retry_attempts) if settings.max_retry_attempts else None,
        others=others,
    )


def build_options(settings: Settings) -> JobOptions:
    """Return the options of a job: the user's, with the backend that the instance type selects."""
    return JobOptions.of(
        settings.run_options,
        backend=fleet_name(settings.instance_type),
        framework_version=settings.framework_version,
        py_version=settings.py_version,
    )


def build_hyperparameters(
    settings: Settings,
    *,
    name: str | None,
    code: Code | None,
    passes_model_dir: bool,
    home: str | Path | None = None,
) -> dict[str, str]:
    """All hyperparameters as they are sent: the user's, the strategy's, ``model_dir`` and the platform's.

    They are JSON texts; those of an image that brings its own entry point are ``str()`` of the values.

    Args:
        settings: What the estimator was told.
        name: The job's name; None before there is one, which leaves out what depends on it.
        code: The user's code, if there is any.
        passes_model_dir: Whether the script is passed ``--model_dir``.
        home: Instead of ``$FLEETFIT_HOME``.
    """
    user = settings.hyperparameters
    platform: dict[str, Any] = {}
    if settings.distribution is not None:
        platform.update(settings.distribution.to_hyperparameters())
    if settings.hang_timeout is not None:
        platform[codec.HANG_TIMEOUT] = settings.hang_timeout
    if settings.arguments:
        platform[codec.ARGUMENTS] = list(settings.arguments)
    platform.update(_noticed(settings))
    if passes_model_dir and settings.model_dir is not False:
        if codec.MODEL_DIR in user:
            raise ConfigurationError(
                f"hyperparameter {codec.MODEL_DIR!r}: the estimator's argument model_dir sets this hyperparameter. "
                f"Give model_dir={user[codec.MODEL_DIR]!r} instead, or add model_dir=False to pass the hyperparameter "
                "itself."
            )
        model_dir = default_model_dir(settings, name, home) if settings.model_dir is None else settings.model_dir
        if model_dir is not None:
            platform[codec.MODEL_DIR] = model_dir
    if code is not None and name is not None:
        platform[codec.PROGRAM] = code.program
        platform[codec.SUBMIT_DIRECTORY] = code.submit_directory
        platform[codec.LOG_LEVEL] = settings.container_log_level
        platform[codec.JOB_NAME] = name
        if settings.region is not None:
            platform[codec.REGION] = settings.region
    encoded = {**settings.encoded_hyperparameters, **codec.encode(platform)}
    if settings.is_plain and codec.MODEL_DIR in platform:  # the image's program reads it
        encoded[codec.MODEL_DIR] = codec.plain_value(codec.MODEL_DIR, platform[codec.MODEL_DIR])
    return encoded


def _noticed(settings: Settings) -> dict[str, str]:
    """Return what the hosts are to fail a job for. Of metrics the supervisor judges, where the job is not elsewhere."""
    options = settings.run_options
    found = {}
    if options.on_undistributed == "fail" and settings.distribution is not None:
        found[codec.ON_UNDISTRIBUTED] = "fail"
    if options.on_nan == "fail" and settings.capabilities.managed:
        found[codec.ON_NAN] = "fail"
    return found


def default_model_dir(settings: Settings, name: str | None, home: str | Path | None = None) -> str | None:
    """``model_dir`` where none is given: ``/opt/ml/model`` with MPI, else ``<output path>/<job>/model``.

    A local output gives a plain path, since scripts make the folder. None before the job has a name.
    """
    if isinstance(settings.distribution, MPI):
        return f"{DEFAULT_BASE_DIR}/model"
    if name is None:
        return None
    output = output_path(settings, home)
    local = path_here(output)
    return str(local / name / "model") if local is not None else f"{output.rstrip('/')}/{name}/model"


def output_path(settings: Settings, home: str | Path | None = None) -> str:
    """Return where outputs go: what was given, or the folder of the records, or the SDK's default bucket."""
    if settings.output_path is not None:
        return _location(settings.output_path)
    if not settings.capabilities.managed:
        return jobs_folder(home).as_uri()
    # The SDK's default bucket. Its account is found when the job is launched.
    return f"s3://sagemaker-{settings.region or '<region>'}-<account>"


def submit_directory(settings: Settings, name: str, home: str | Path | None = None) -> str:
    """Return where the containers find the code: the record's ``source/``, or the archive that the SDK would upload."""
    if not settings.capabilities.managed:
        return (jobs_folder(home) / name / "source").as_uri()
    prefix = settings.code_location or output_path(settings, home)
    return f"{prefix.rstrip('/')}/{name}/source/sourcedir.tar.gz"


def _role(settings: Settings) -> str:
    role = settings.role
    if role is None:
        return PLACEHOLDER_ROLE
    if role.startswith("arn:"):
        return role
    # The SDK looks a plain name up in IAM; locally there is nothing to look it up in.
    return f"{PLACEHOLDER_ROLE.rsplit('/', 1)[0]}/{role}" if not settings.capabilities.managed else role


def _location(location: str | None) -> str:
    return normalise_uri(location) if location is not None else ""


def _algorithm(settings: Settings) -> Algorithm:
    others: dict[str, Any] = {}
    if settings.training_repository_access_mode is not None:
        image_config: dict[str, Any] = {"TrainingRepositoryAccessMode": settings.training_repository_access_mode}
        if settings.training_repository_credentials_provider_arn is not None:
            image_config["TrainingRepositoryAuthConfig"] = {
                "TrainingRepositoryCredentialsProviderArn": settings.training_repository_credentials_provider_arn
            }
        others["TrainingImageConfig"] = image_config
    return Algorithm(
        input_mode=settings.input_mode,
        image=settings.image_uri,
        metric_definitions=settings.metric_definitions,
        enable_metrics_time_series=settings.enable_sagemaker_metrics,
        entry_point=settings.container_entry_point or (),
        arguments=settings.container_arguments or (),
        others=others,
    )


def _inputs(settings: Settings, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
    if settings.model_uri is None:
        return channels
    if any(channel.name == settings.model_channel_name for channel in channels):
        raise ConfigurationError(
            f"inputs: the channel name {settings.model_channel_name!r} is already used for model_uri. Rename the "
            "channel, or set model_channel_name=…."
        )
    return (*channels, model_channel(settings.model_uri, settings.model_channel_name))


def _other_members(settings: Settings) -> dict[str, Any]:
    others: dict[str, Any] = {}
    if settings.enable_remote_debug is not None:
        others["RemoteDebugConfig"] = {"EnableRemoteDebug": settings.enable_remote_debug}
    if settings.enable_infra_check is not None:
        others["InfraCheckConfig"] = {"EnableInfraCheck": settings.enable_infra_check}
    if settings.enable_session_tag_chaining is not None:
        others["SessionChainingConfig"] = {"EnableSessionTagChaining": settings.enable_session_tag_chaining}
    return others
