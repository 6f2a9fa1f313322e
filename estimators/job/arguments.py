"""The constructor's arguments: every one of the SageMaker SDK 2.x, and what becomes of it.

One table, :data:`ARGUMENTS`, says for each argument of ``EstimatorBase``, ``Framework`` and ``TensorFlow`` whether it
is carried, changed or refused, and why. The constructor reads its arguments by it, and ``docs/sagemaker-arguments.md``
shows it.
"""

from __future__ import annotations

import dataclasses
import enum
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.names import shown, unknown
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.fleets import DEFAULT, PROCESSES, capabilities


class Treatment(enum.Enum):
    """What becomes of an argument."""

    CARRIED = "carried"  # same name, meaning and default
    CHANGED = "changed"  # same name, another default or meaning; the note says which
    AWS_ONLY = "aws"  # carried into the request for ml.* types, refused for local ones unless it asks for nothing
    REFUSED = "refused"  # refused whatever the instance type
    OWN = "own"  # fleetfit's own, unknown to the SDK


class Owner(enum.Enum):
    """Which constructor takes an argument."""

    ESTIMATOR = "Estimator"  # and every class below it
    FRAMEWORK = "TensorFlow and PyTorch"
    TENSORFLOW = "TensorFlow"


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument.

    Attributes:
        name: Its name in the SDK 2.x.
        treatment: What becomes of it.
        note: For users: what is different, or why it is refused and what to do instead.
        v1_name: Its name in the SDK 1.x, still taken with a DeprecationWarning.
        owner: Which constructor takes it.
        neutral: Values that ask for nothing, and are taken although the rest is refused.
        containers: Whether local containers take it, though processes do not.
    """

    name: str
    treatment: Treatment
    note: str = ""
    v1_name: str | None = None
    owner: Owner = Owner.ESTIMATOR
    neutral: tuple[Any, ...] = (None,)
    containers: bool = False


class ArgumentNameError(ConfigurationError, TypeError):
    """A constructor does not take an argument of that name."""


_CARRIED, _CHANGED, _AWS, _REFUSED, _OWN = Treatment
_TF = Owner.TENSORFLOW
_FRAMEWORK = Owner.FRAMEWORK

#: The columns: name, treatment, note.
# fmt: off
ARGUMENTS: tuple[Argument, ...] = (
    # where
    Argument("role", _CHANGED, "optional. Local jobs use a placeholder. On SageMaker, fleetfit finds the role in the "
        "same way as get_execution_role()"),
    Argument("instance_count", _CHANGED, "default: 1. The SDK has no default and raises an error",
        v1_name="train_instance_count"),
    Argument("instance_type", _CHANGED, f"selects the backend. Default: {DEFAULT!r} (processes on this machine). The "
        f"SDK has no default and raises an error", v1_name="train_instance_type"),
    Argument("keep_alive_period_in_seconds", _CARRIED, f"keeps local containers for the next job. {PROCESSES} and ssh "
        f"keep a process that has imported the framework"),
    Argument("instance_groups", _REFUSED, "heterogeneous clusters are not supported yet"),
    Argument("volume_size", _CARRIED, "without effect for local jobs, because jobs use the machine's disk",
        v1_name="train_volume_size"),
    Argument("volume_kms_key", _AWS, "AWS KMS keys can encrypt only volumes on AWS. For local jobs, use an encrypted "
        "disk", v1_name="train_volume_kms_key"),
    Argument("training_plan", _AWS, "training plans reserve AWS capacity"),
    Argument("instance_placement_config", _AWS, "places instances in AWS's UltraServers"),
    # code
    Argument("entry_point", _CHANGED, "also a function, a module ('pkg.module') or a folder with a __main__.py. "
        "Modules and folders need no setup.py"),
    Argument("source_dir", _CHANGED, "code on S3 (a .tar.gz) works only for jobs on SageMaker. fleetfit does not send "
        ".env and files that match .fleetfitignore (or .gitignore, if there is no .fleetfitignore)"),
    Argument("dependencies", _CHANGED, "a dependency with the same name as a file or folder of the code is refused"),
    Argument("git_config", _REFUSED, "fleetfit cannot clone repositories. Clone the repository yourself and set "
        "source_dir to its folder"),
    Argument("code_location", _AWS, "the code of local jobs is in the job record and is not uploaded"),
    Argument("hyperparameters", _CHANGED, "values keep their types. An image without an entry_point gets str() of "
        "each value, as in the SDK. fleetfit refuses reserved names, and values that JSON cannot represent"),
    Argument("environment", _CARRIED),
    Argument("container_log_level", _CARRIED),
    Argument("container_entry_point", _AWS, "also works in local containers. Processes on this machine have no "
        "container. For processes, use entry_point", containers=True),
    Argument("container_arguments", _AWS, "also works in local containers. Processes on this machine have no "
        "container. For processes, use hyperparameters", containers=True),
    # image
    Argument("image_uri", _CARRIED, f"the default job name starts with the image's name. {PROCESSES} runs this "
        f"Python, not the image", v1_name="image_name"),
    Argument("framework_version", _CHANGED, f"optional. {PROCESSES} runs the installed version, and warns if you "
        f"request a different version", owner=_FRAMEWORK),
    Argument("py_version", _CHANGED, "the same as for framework_version", owner=_FRAMEWORK),
    Argument("compiler_config", _REFUSED, "current AWS images no longer contain SageMaker Training Compiler",
        owner=_FRAMEWORK),
    Argument("training_repository_access_mode", _AWS, "tells SageMaker how to access the image's registry"),
    Argument("training_repository_credentials_provider_arn", _AWS, "tells SageMaker how to sign in to the image's "
        "registry"),
    # data and output
    Argument("input_mode", _CARRIED, "'File', 'Pipe' and 'FastFile', on every backend"),
    Argument("model_uri", _CHANGED, "also a path. In local jobs, this channel is like any other input channel"),
    Argument("model_channel_name", _CARRIED),
    Argument("output_path", _CHANGED, "also a path or file:// URI. For local jobs, the default is the folder of job "
        "records"),
    Argument("output_kms_key", _AWS, "AWS KMS keys can encrypt only objects on S3. For local jobs, use an encrypted "
        "disk"),
    Argument("disable_output_compression", _AWS, "local outputs are packed as model.tar.gz and output.tar.gz",
        neutral=(None, False)),
    Argument("model_dir", _CHANGED, "the same rules as in the SDK. With a local output, <output_path>/<job>/model is "
        "a plain path", owner=_TF),
    # limits and spot
    Argument("max_run", _CARRIED, v1_name="train_max_run"),
    Argument("use_spot_instances", _CARRIED, "for local jobs, `RunOptions(spot_market=SpotMarket(…))` simulates "
        "interruptions and the return of hosts", v1_name="train_use_spot_instances"),
    Argument("max_wait", _CARRIED, v1_name="train_max_wait"),
    Argument("max_retry_attempts", _CHANGED, "local jobs are also retried after a failure of the script, unless a "
        "retry would fail in the same way. More options: `RunOptions(failure_policy=FailurePolicy(…))`"),
    Argument("checkpoint_s3_uri", _CHANGED, "also a path or file:// URI. For local jobs, the default is a folder in "
        "the job record"),
    Argument("checkpoint_local_path", _CHANGED, f"{PROCESSES} accepts only '/opt/ml/checkpoints'. SM_CHECKPOINT_DIR "
        f"contains the path of the actual folder"),
    # observability
    Argument("metric_definitions", _CHANGED, "the first group of a regex is the number. A regex without a group is "
        "refused"),
    Argument("enable_sagemaker_metrics", _CARRIED, "without effect for local jobs, because all metrics are kept"),
    Argument("rules", _REFUSED, "rules belong to SageMaker Debugger, a service of AWS", neutral=(None, [])),
    Argument("debugger_hook_config", _REFUSED, "SageMaker Debugger is a service of AWS. Only None and False are "
        "accepted", neutral=(None, False)),
    Argument("tensorboard_output_config", _REFUSED, "with this argument, SageMaker copies event files to S3. Instead, "
        "write event files below SM_OUTPUT_DATA_DIR"),
    Argument("profiler_config", _REFUSED, "SageMaker Profiler is a service of AWS"),
    Argument("disable_profiler", _REFUSED, "fleetfit has no profiler. True, False and None are accepted without "
        "effect. Other values are refused", neutral=(None, True, False)),
    Argument("enable_remote_debug", _AWS, "opens a session in a container on AWS. A local process can be debugged on "
        "its own machine", neutral=(None, False)),
    # network and security
    Argument("subnets", _AWS, "a VPC exists on AWS only"),
    Argument("security_group_ids", _AWS, "a VPC exists on AWS only"),
    Argument("encrypt_inter_container_traffic", _AWS, "processes of one machine communicate over its loopback "
        "interface", neutral=(None, False)),
    Argument("enable_network_isolation", _AWS, "also works for local containers. Processes of this machine share the "
        "machine's network", neutral=(None, False), containers=True),
    Argument("enable_infra_check", _AWS, "SageMaker checks its own instances. `fleetfit doctor` checks this machine",
        neutral=(None, False)),
    Argument("enable_session_tag_chaining", _AWS, "session tags belong to AWS roles", neutral=(None, False)),
    # the rest
    Argument("distribution", _CHANGED, "also a strategy object, such as MPI(processes_per_host=2). smdistributed and "
        "pytorchxla are not available. The estimator refuses unknown keys, two strategies, a missing 'enabled', and "
        "strategies for a framework that is not its own", v1_name="distributions"),
    Argument("base_job_name", _CARRIED),
    Argument("sagemaker_session", _CHANGED, "also a boto3 session. Local jobs use only the session's region"),
    Argument("tags", _CARRIED, "without effect locally"),
    # our own
    Argument("arguments", _OWN, "more command-line arguments for the script, for example ['--fp16', '--layers', '64', "
        "'32']. The script gets these arguments unchanged, after the hyperparameters. Use arguments for flags, "
        "options with several values, and values with a dash at the start"),
    Argument("hang_timeout", _OWN, "a time limit in seconds (default: none). If no rank prints or reports anything "
        "for this time, every rank's stack is logged and the job fails"),
    Argument("capture_limit", _OWN, "if entry_point is a function: the maximum size, in bytes, of the values that the "
        "function captures. Default: 10,000,000"),
    Argument("run_options", _OWN, "RunOptions: for example grace times, the interpreter, the options of the backend, "
        "the reaction to NaN and to ranks that train separately"),
)
# fmt: on

BY_NAME: Mapping[str, Argument] = {argument.name: argument for argument in ARGUMENTS}
BY_V1_NAME: Mapping[str, Argument] = {item.v1_name: item for item in ARGUMENTS if item.v1_name is not None}


def read_arguments(
    given: Mapping[str, Any], *, constructor: str, owners: Iterable[Owner], stacklevel: int = 3
) -> dict[str, Any]:
    """Read the keywords of a constructor: rename v1's names, refuse what nobody takes.

    Args:
        given: The keywords.
        constructor: What the constructor is called in errors.
        owners: Whose arguments it takes.
        stacklevel: Of the DeprecationWarning for v1's names, so that it shows the user's line.

    Returns:
        The values by their v2 names; what is refused and was given as a value that asks for nothing is left out.

    Raises:
        ArgumentNameError: nobody takes the name; the message has the nearest one.
        ConfigurationError: an argument is given by its old and its new name.
        UnsupportedError: the argument is refused; the message says why.
    """
    allowed = {item.name: item for item in ARGUMENTS if item.owner in set(owners)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        argument = allowed.get(name)
        renamed = BY_V1_NAME.get(name)
        if renamed is not None and renamed.name in allowed:
            if renamed.name in given:
                raise ConfigurationError(
                    f"{constructor}: {name} is the old name of {renamed.name}, and both are given "
                    f"({shown(given[name])} and {shown(given[renamed.name])}). Keep {renamed.name} only."
                )
            warnings.warn(
                f"{name} is a name of the SageMaker SDK 1.x. Use {renamed.name}.",
                DeprecationWarning,
                stacklevel=stacklevel,
            )
            argument = renamed
        if argument is None:
            other = BY_NAME.get(name)
            if other is not None:
                raise ArgumentNameError(f"{constructor}: {name} is an argument of {other.owner.value} only.")
            names = [item.name for item in allowed.values() if item.treatment is not Treatment.REFUSED]
            raise ArgumentNameError(unknown(f"argument of {constructor}", name, names))
        if argument.treatment is Treatment.REFUSED:
            if not asks_for_nothing(argument, value):
                raise UnsupportedError(f"{constructor}: {argument.name}={shown(value)} is refused: {argument.note}.")
            continue
        values[argument.name] = value
    return values


def asks_for_nothing(argument: Argument, value: Any) -> bool:
    """Return whether the value is one of the argument's neutral ones."""
    return any(value is neutral or (type(value) is type(neutral) and value == neutral) for neutral in argument.neutral)


def refuse_locally(values: Mapping[str, Any], instance_type: str) -> None:
    """Refuse, for a local instance type, what only AWS can do and would be missed.

    Raises:
        UnsupportedError: names the argument, the reason and what is done instead.
    """
    for argument in ARGUMENTS:
        if argument.treatment is not Treatment.AWS_ONLY or argument.name not in values:
            continue
        if argument.containers and capabilities(instance_type).containers:
            continue
        value = values[argument.name]
        if not asks_for_nothing(argument, value):
            raise UnsupportedError(
                f"{argument.name}={shown(value)} is not available with instance_type={instance_type!r}: "
                f"{argument.note}."
            )
