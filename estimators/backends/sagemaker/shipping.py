"""Decide how SageMaker images start a script, add our toolkit where needed, and refuse unsupported options.

The functions are pure. Three kinds of images are distinguished:

* fleetfit's own images and images with their own program run unchanged.
* Any other image with a user's script gets our toolkit through the job's code channel. The container starts
  with our toolkit, so that strategies, logs and exit handling are the same as on all other backends.
* In any other image with ``toolkit="image"``, AWS's toolkit in the image starts the script. Options that AWS's toolkit
  does not support are refused.
"""

from __future__ import annotations

import dataclasses

from container.contract import hyperparameters as codec
from container.contract.frozen import dataclass
from container.contract.layout import CODE_CHANNEL, DEFAULT_BASE_DIR
from container.contract.strategies import ParameterServer
from estimators.backends.sagemaker import images
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.request import DataSource, InputChannel, RunOptions, S3DataSource, TrainingJobSpec

#: Names of the files in a code channel.
SOURCE_ARCHIVE = "sourcedir.tar.gz"
TOOLKIT_ARCHIVE = "toolkit.tar.gz"
STARTER = "start.py"

_FOLDER = f"{DEFAULT_BASE_DIR}/input/data/{CODE_CHANNEL}"
#: The command that starts a container with our toolkit.
ENTRY_POINT = ("python3", f"{_FOLDER}/{STARTER}")
#: Path of the code's archive in the container.
SOURCE_PATH = f"{_FOLDER}/{SOURCE_ARCHIVE}"

#: Seconds that SageMaker waits after SIGTERM until SIGKILL.
STOP_GRACE = 120.0

#: Options of fleetfit that have a counterpart in SageMaker's own options. The error message names the counterpart.
_THEIRS = ("failure_policy", "spot_market")


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """The S3 URIs of the files to upload before a job is created. The URI is None for a file that the job does not
    need.

    Attributes:
        source: The URI for the code's archive.
        toolkit: The URI for the toolkit's archive.
        starter: The URI for the program that unpacks the toolkit.
    """

    source: str | None = None
    toolkit: str | None = None
    starter: str | None = None


def is_shipped(spec: TrainingJobSpec) -> bool:
    """Return whether our toolkit is uploaded for a job."""
    return spec.algorithm.entry_point == ENTRY_POINT


def wants_toolkit(spec: TrainingJobSpec, toolkit: str) -> bool:
    """Return whether our toolkit has to be uploaded for a job.

    Args:
        spec: The job, before :func:`with_code_channel` has changed it.
        toolkit: The value of the option ``toolkit``: ``auto``, ``image`` or ``shipped``.
    """
    if spec.program is None or spec.algorithm.entry_point:
        return False
    if toolkit == "auto":
        return spec.algorithm.image is not None and not images.is_ours(spec.algorithm.image)
    return toolkit == "shipped"


def with_code_channel(spec: TrainingJobSpec, *, toolkit: str, prefix: str) -> TrainingJobSpec:
    """Add a code channel to a job that needs one, and return the new job. Return any other job unchanged.

    A job with a script needs a code channel if our toolkit is uploaded or the job's containers have no network.

    Args:
        spec: The job.
        toolkit: The value of the option ``toolkit``: ``auto``, ``image`` or ``shipped``.
        prefix: The prefix ``s3://…/<job>/source`` to which the job's code is uploaded.

    Raises:
        ConfigurationError: the user has a channel with the code channel's name, or the job has too many channels.
        UnsupportedError: the job's containers have no network and its code is already on S3, so a channel cannot
            provide the code. Or the toolkit has no script to start.
    """
    shipped = wants_toolkit(spec, toolkit)
    if toolkit == "shipped" and not shipped:
        raise UnsupportedError(
            "backend_options: toolkit='shipped' needs an entry_point, which the toolkit starts. Leave "
            "container_entry_point out."
        )
    if spec.program is None or not (shipped or spec.network_isolation):
        return spec
    if any(channel.name == CODE_CHANNEL for channel in spec.inputs):
        raise ConfigurationError(f"inputs: the channel name {CODE_CHANNEL!r} is fleetfit's own. Rename your channel.")
    uploaded = spec.submit_directory == f"{prefix}/{SOURCE_ARCHIVE}"
    if spec.network_isolation and not uploaded:
        raise UnsupportedError(
            f"enable_network_isolation=True: isolated containers cannot fetch source_dir={spec.submit_directory!r}. "
            "Give a local folder."
        )
    moved = codec.encode({codec.SUBMIT_DIRECTORY: SOURCE_PATH}) if uploaded else {}
    channel = InputChannel(
        name=CODE_CHANNEL,
        source=DataSource(s3=S3DataSource(uri=f"{prefix}/", distribution="FullyReplicated")),
        input_mode="File",
    )
    algorithm = dataclasses.replace(spec.algorithm, entry_point=ENTRY_POINT) if shipped else spec.algorithm
    return dataclasses.replace(
        spec,
        algorithm=algorithm,
        inputs=(*spec.inputs, channel),
        hyperparameters={**spec.hyperparameters, **moved},
    )


def uploads(spec: TrainingJobSpec, *, has_source: bool) -> Uploads:
    """Return the S3 URIs of the files to upload for a job.

    Args:
        spec: The job.
        has_source: Whether the code is on this machine.
    """
    by_channel = next(
        (item.source.s3.uri for item in spec.inputs if item.name == CODE_CHANNEL and item.source.s3 is not None), None
    )
    source = spec.submit_directory if has_source else None
    if source is not None and by_channel is not None:
        source = by_channel + SOURCE_ARCHIVE
    shipped = by_channel is not None and is_shipped(spec)
    return Uploads(
        source=source,
        toolkit=f"{by_channel}{TOOLKIT_ARCHIVE}" if shipped else None,
        starter=f"{by_channel}{STARTER}" if shipped else None,
    )


def check(spec: TrainingJobSpec, options: RunOptions) -> None:
    """Refuse options that SageMaker or the image does not support.

    Raises:
        UnsupportedError: an option is not supported. The message names the option, the reason and the remedy.
    """
    _check_run_options(options)
    image = spec.algorithm.image
    if image is None:
        return  # the missing image is reported elsewhere
    _check_noticed(spec, options, image)
    if spec.program is None or is_shipped(spec) or images.is_ours(image):
        return
    remedy = (
        "To let fleetfit send its toolkit and start the script with this toolkit, leave toolkit='image' out of "
        "backend_options"
    )
    strategy = spec.strategy
    if isinstance(strategy, ParameterServer) and strategy.coordinated:
        raise UnsupportedError(
            f"distribution 'parameter_server' does not work with image {image!r}: AWS's toolkit starts a cluster "
            "for TensorFlow 1. Such a cluster has no chief and no coordinator, so each worker would train by itself. "
            f"{remedy}. If your script is written for TensorFlow 1, use ParameterServer(cluster_spec='sagemaker')."
        )
    own = [name for name in spec.hyperparameters if name.startswith("fleetfit_")]
    if own:
        raise UnsupportedError(
            f"image {image!r} would start the script with its own toolkit, which does not know "
            f"{', '.join('arguments=' if name == codec.ARGUMENTS else name for name in own)}. "
            f"{remedy}."
        )


def _check_noticed(spec: TrainingJobSpec, options: RunOptions, image: str) -> None:
    """Refuse the options ``on_undistributed="fail"`` and ``on_nan="fail"`` if the image does not run our toolkit.

    Only our toolkit can fail a job for these reasons. Also refuse ``on_nan="fail"`` together with
    ``metric_definitions``, because SageMaker itself reads these metrics.

    Raises:
        UnsupportedError: an option is not supported. The message has the reason and the remedy.
    """
    for name in ("on_undistributed", "on_nan"):
        if getattr(options, name) == "fail" and spec.program is None and not images.is_ours(image):
            raise UnsupportedError(
                f"RunOptions({name}='fail'): only fleetfit's toolkit can end a job with this option, and image "
                f"{image!r} does not contain the toolkit. Leave {name} out, or give an entry_point."
            )
    if options.on_nan == "fail" and spec.algorithm.metric_definitions:
        names = ", ".join(repr(definition.name) for definition in spec.algorithm.metric_definitions)
        raise UnsupportedError(
            f"RunOptions(on_nan='fail') does not work with metric_definitions ({names}): SageMaker finds these "
            "metrics in the logs, and does not fail a job for their values. Report the metrics with "
            "container.distributed (report() or callbacks()) and leave metric_definitions out, or use on_nan='warn'."
        )


def warnings(spec: TrainingJobSpec) -> list[str]:
    """Return warnings about a job's image: the image starts the script with its own toolkit, or may lack a package."""
    image = spec.algorithm.image or ""
    found = []
    # The image is unknown if AWS cannot be reached. plan() then names the argument to set.
    if image and spec.program is not None and not images.is_ours(image) and not is_shipped(spec):
        found.append(
            f"image {image!r} starts the script with its own toolkit; plan() shows the processes that fleetfit's "
            "toolkit would start."
        )
    is_mpi = spec.program is not None and spec.strategy is not None and spec.strategy.name == "mpi"
    if is_mpi and images.is_aws_tensorflow(image):
        found.append(
            "distribution 'mpi': recent TensorFlow images of AWS contain no Horovod; fleetfit's own image contains "
            "Horovod (`fleetfit image push`)."
        )
    if is_shipped(spec) and (spec.submit_directory or "").startswith("s3://"):
        found.append(
            f"source_dir={spec.submit_directory!r} is fetched in the container, which needs boto3 in the image."
        )
    return found


def _check_run_options(options: RunOptions) -> None:
    if options.stop_grace != STOP_GRACE:
        raise UnsupportedError(
            f"RunOptions(stop_grace={options.stop_grace!r}): SageMaker always gives a script {STOP_GRACE:g} s after "
            "SIGTERM. Leave stop_grace out."
        )
    defaults = RunOptions()
    for name in ("interrupt_grace", "start_timeout", "python", "failure_policy", "spot_market", "faults"):
        if getattr(options, name) != getattr(defaults, name):
            instead = "; on SageMaker, use max_retry_attempts and use_spot_instances" if name in _THEIRS else ""
            raise UnsupportedError(
                f"RunOptions({name}={getattr(options, name)!r}) has no effect on SageMaker, because it is only for "
                f"jobs of this machine. Leave it out{instead}."
            )
