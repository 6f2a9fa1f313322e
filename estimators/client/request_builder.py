"""Build a job's :class:`TrainingJobSpec` and :class:`JobOptions` from an estimator's settings.

The specification contains everything that the SageMaker SDK 2.x would put into a CreateTrainingJob request. The SDK
builds the request in ``session.py`` (``_get_train_request``), ``estimator.py`` (``_script_mode_hyperparam_update``) and
``tensorflow/estimator.py`` (``_default_s3_path``).
"""

from __future__ import annotations

from typing import Any

from container.contract import hyperparameters as codec
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.strategies import MPI
from container.system.locations import path_here
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import fleet_name
from estimators.job.inputs import model_channel, normalise_uri
from estimators.job.request import (
    Algorithm,
    CheckpointConfig,
    InputChannel,
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

#: Arguments of estimators -> a structure in the request, and the structure's member that gets the argument's value.
SWITCHES = {
    "enable_remote_debug": ("RemoteDebugConfig", "EnableRemoteDebug"),
    "enable_infra_check": ("InfraCheckConfig", "EnableInfraCheck"),
    "enable_session_tag_chaining": ("SessionChainingConfig", "EnableSessionTagChaining"),
}
#: The role in the request of a job that needs no role.
PLACEHOLDER_ROLE = "arn:aws:iam::000000000000:role/fleetfit-local"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The location of a job's code, for the container toolkit that starts the script on the hosts.

    Attributes:
        program: The entry point.
        submit_directory: The location of the code: a ``file://`` URI of a folder, or the S3 URI of an archive.
    """

    program: str
    submit_directory: str


def build_spec(
    settings: Settings,
    *,
    name: str,
    channels: tuple[InputChannel, ...],
    code: Code | None,
    passes_model_dir: bool,
    experiment: dict[str, str] | None = None,
) -> TrainingJobSpec:
    """Build the specification of a job.

    Args:
        settings: The estimator's settings.
        name: The job's name.
        channels: The inputs.
        code: The user's code, or None if the image contains the code.
        passes_model_dir: Whether the script receives ``--model_dir``, which only the TensorFlow estimator passes.
        experiment: SageMaker's ``ExperimentConfig``.

    Raises:
        ConfigurationError: the settings contradict each other.
    """
    others = _other_members(settings)
    if experiment:
        others["ExperimentConfig"] = dict(experiment)
    return TrainingJobSpec(
        name=name,
        role=_role(settings),
        algorithm=_algorithm(settings),
        hyperparameters=build_hyperparameters(settings, name=name, code=code, passes_model_dir=passes_model_dir),
        inputs=_inputs(settings, channels),
        output=OutputConfig(
            path=output_path(settings),
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
    """Return the options of a job: the user's run options, and the backend that the instance type selects."""
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
) -> dict[str, str]:
    """Return all hyperparameters of a job's request.

    These are the user's and the strategy's hyperparameters, ``model_dir``, and the hyperparameters for the container
    toolkit. The values are JSON texts. If the image contains its own program, the user's values are converted with
    ``str()`` instead.

    Args:
        settings: The estimator's settings.
        name: The job's name, or None if the job has no name yet. With None, hyperparameters that depend on the name are
            left out.
        code: The user's code, or None.
        passes_model_dir: Whether the script receives ``--model_dir``.

    Raises:
        ConfigurationError: ``model_dir`` is set both as an argument and as a hyperparameter.
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
        model_dir = default_model_dir(settings, name) if settings.model_dir is None else settings.model_dir
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
    if settings.is_plain and codec.MODEL_DIR in platform:  # the image's own program reads plain texts
        encoded[codec.MODEL_DIR] = codec.plain_value(codec.MODEL_DIR, platform[codec.MODEL_DIR])
    return encoded


def _noticed(settings: Settings) -> dict[str, str]:
    """Return the hyperparameters that tell the hosts to fail the job if ranks train separately or a metric is NaN.

    On SageMaker, the hosts check metrics for NaN. With any other backend, the job's supervisor checks them.
    """
    options = settings.run_options
    found = {}
    if options.on_undistributed == "fail" and settings.distribution is not None:
        found[codec.ON_UNDISTRIBUTED] = "fail"
    if options.on_nan == "fail" and settings.capabilities.managed:
        found[codec.ON_NAN] = "fail"
    return found


def default_model_dir(settings: Settings, name: str | None) -> str | None:
    """Return the default of ``model_dir``: ``/opt/ml/model`` with MPI, and ``<output path>/<job>/model`` otherwise.

    If the output path is on this machine, the result is a path and not a URI, so that scripts can create the folder. If
    ``name`` is None, the result is None, except with MPI.
    """
    if isinstance(settings.distribution, MPI):
        return f"{DEFAULT_BASE_DIR}/model"
    if name is None:
        return None
    output = output_path(settings)
    local = path_here(output)
    return str(local / name / "model") if local is not None else f"{output.rstrip('/')}/{name}/model"


def output_path(settings: Settings) -> str:
    """Return the URI of the folder for the outputs.

    If ``output_path`` is not set, the result is the folder of the job records. For a job on SageMaker, the result is
    then the default bucket of the SageMaker SDK.
    """
    if settings.output_path is not None:
        return _location(settings.output_path)
    if not settings.capabilities.managed:
        return jobs_folder().as_uri()
    # This is the default bucket of the SageMaker SDK. `<account>` is replaced when the job starts.
    return f"s3://sagemaker-{settings.region or '<region>'}-<account>"


def submit_directory(settings: Settings, name: str) -> str:
    """Return the URI of the job's code.

    On SageMaker, the URI names the archive that the SageMaker SDK would upload. With any other backend, the URI names
    the folder ``source`` in the job's record.
    """
    if not settings.capabilities.managed:
        return (jobs_folder() / name / "source").as_uri()
    prefix = settings.code_location or output_path(settings)
    return f"{prefix.rstrip('/')}/{name}/source/sourcedir.tar.gz"


def _role(settings: Settings) -> str:
    role = settings.role
    if role is None:
        return PLACEHOLDER_ROLE
    if role.startswith("arn:"):
        return role
    # A role without an ARN is a plain name. On SageMaker, the name is looked up in IAM. For local jobs, an ARN with a
    # placeholder account suffices.
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


def _inputs(settings: Settings, channels: tuple[InputChannel, ...]) -> tuple[InputChannel, ...]:
    if settings.model_uri is None:
        return channels
    if any(channel.name == settings.model_channel_name for channel in channels):
        raise ConfigurationError(
            f"inputs: the channel name {settings.model_channel_name!r} is already used for model_uri. Rename the "
            "channel, or set model_channel_name=…."
        )
    return (*channels, model_channel(settings.model_uri, settings.model_channel_name))


def _other_members(settings: Settings) -> dict[str, Any]:
    given = {name: getattr(settings, name) for name in SWITCHES}
    return {SWITCHES[name][0]: {SWITCHES[name][1]: value} for name, value in given.items() if value is not None}
