"""Define how fleetfit treats each argument of the SageMaker SDK 2.x's constructors.

For each argument of ``EstimatorBase``, ``Framework`` and ``TensorFlow``, the table :data:`ARGUMENTS` states whether
fleetfit keeps, changes or refuses the argument, and why. The constructors read their arguments with this table, and
``docs/sagemaker-arguments.md`` shows the table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.names import shown, unknown
from estimators.job.errors import ArgumentNameError, ConfigurationError, UnsupportedError, warn
from estimators.job.fleets import DEFAULT, PROCESSES, capabilities
from estimators.job.secrets import mask_value


class Treatment(enum.Enum):
    """Whether fleetfit keeps, changes or refuses an argument of the SageMaker SDK, or has added the argument."""

    CARRIED = "carried"  # same name, meaning and default
    CHANGED = "changed"  # same name, different default or meaning, as the note explains
    AWS_ONLY = "aws"  # sent for ml.* types; refused for other types, except for neutral values
    REFUSED = "refused"  # refused for every instance type
    OWN = "own"  # an argument of fleetfit that the SDK does not have


class Owner(enum.Enum):
    """The constructor that accepts an argument."""

    ESTIMATOR = "Estimator"  # and every subclass
    FRAMEWORK = "TensorFlow and PyTorch"
    TENSORFLOW = "TensorFlow"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a constructor.

    Attributes:
        name: The argument's name in the SageMaker SDK 2.x.
        treatment: Whether fleetfit keeps, changes or refuses the argument, or has added it.
        note: A text for users. The text states the difference from the SageMaker SDK. For a refused argument, the text
            states the reason and an alternative.
        v1_name: The argument's name in the SageMaker SDK 1.x. The use of the old name causes a DeprecationWarning.
        owner: The constructor that accepts the argument.
        neutral: The values that have the same effect as leaving the argument out. These values are always accepted.
        containers: Whether local containers support the argument although local processes do not.
        accepts: The type of the argument's values, for editors and type checkers. If empty, the argument has the type
            of the field with the same name in ``Settings``.
    """

    name: str
    treatment: Treatment
    note: str = ""
    v1_name: str | None = None
    owner: Owner = Owner.ESTIMATOR
    neutral: tuple[Any, ...] = (None,)
    containers: bool = False
    accepts: str = ""


_CARRIED, _CHANGED, _AWS, _REFUSED, _OWN = Treatment
_TF = Owner.TENSORFLOW
_FRAMEWORK = Owner.FRAMEWORK
_PATH = "str | os.PathLike[str] | None"
_PATHS = "Sequence[str | os.PathLike[str]] | None"
_TEXTS = "Sequence[str] | None"

ARGUMENTS: tuple[Argument, ...] = (
    # hosts
    Argument(
        name="role",
        treatment=_CHANGED,
        note="optional. Local jobs use a placeholder. On SageMaker, fleetfit finds the role in the same way as "
        "get_execution_role()",
    ),
    Argument(
        name="instance_count",
        treatment=_CHANGED,
        v1_name="train_instance_count",
        note="default: 1. The SDK has no default and raises an error",
    ),
    Argument(
        name="instance_type",
        treatment=_CHANGED,
        v1_name="train_instance_type",
        note=f"selects the backend. Default: {DEFAULT!r} (processes on this machine). The SDK has no default and "
        "raises an error",
    ),
    Argument(
        name="keep_alive_period_in_seconds",
        treatment=_CARRIED,
        note=f"also for local jobs: containers are kept for the next job. With {PROCESSES} and ssh, a process that has "
        "imported the framework is kept instead",
    ),
    Argument(name="instance_groups", treatment=_REFUSED, note="heterogeneous clusters are not supported yet"),
    Argument(
        name="volume_size",
        treatment=_CARRIED,
        v1_name="train_volume_size",
        note="without effect for local jobs, because these jobs use the machine's own disk. On EC2, use "
        '`backend_options={"volume_gb": …}`',
    ),
    Argument(
        name="volume_kms_key",
        treatment=_AWS,
        v1_name="train_volume_kms_key",
        note="AWS KMS keys can encrypt only volumes on AWS. For local jobs, use an encrypted disk",
    ),
    Argument(name="training_plan", treatment=_AWS, note="training plans reserve AWS capacity"),
    Argument(name="instance_placement_config", treatment=_AWS, note="places instances in AWS's UltraServers"),
    # code
    Argument(
        name="entry_point",
        treatment=_CHANGED,
        accepts="str | os.PathLike[str] | Callable[..., Any] | None",
        note="also a function, a module ('pkg.module') or a folder with a __main__.py. Modules and folders need no "
        "setup.py",
    ),
    Argument(
        name="source_dir",
        treatment=_CHANGED,
        accepts=_PATH,
        note="code on S3 (a .tar.gz) works only for jobs on SageMaker. By default, fleetfit sends neither .env nor "
        "files that match .fleetfitignore (or .gitignore, if no .fleetfitignore exists)",
    ),
    Argument(
        name="dependencies",
        treatment=_CHANGED,
        accepts=_PATHS,
        note="fleetfit refuses a dependency with the same name as a file or folder of the code",
    ),
    Argument(
        name="git_config",
        treatment=_REFUSED,
        note="fleetfit cannot clone repositories. Clone the repository yourself and set source_dir to its folder",
    ),
    Argument(
        name="code_location",
        treatment=_AWS,
        note="the code of local jobs is in the job record and is not uploaded",
    ),
    Argument(
        name="hyperparameters",
        treatment=_CHANGED,
        accepts="Mapping[str, Any] | None",
        note="values keep their types. Without entry_point, the program of the image gets str() of each value, as in "
        "the SDK. fleetfit refuses reserved names, and values that JSON cannot represent",
    ),
    Argument(name="environment", treatment=_CARRIED, accepts="Mapping[str, str] | None"),
    Argument(name="container_log_level", treatment=_CARRIED),
    Argument(
        name="container_entry_point",
        treatment=_AWS,
        accepts=_TEXTS,
        note="also works in local containers. Processes on this machine have no container. For processes, use "
        "entry_point",
        containers=True,
    ),
    Argument(
        name="container_arguments",
        treatment=_AWS,
        accepts=_TEXTS,
        note="also works in local containers. Processes on this machine have no container. For processes, use "
        "hyperparameters",
        containers=True,
    ),
    # image
    Argument(
        name="image_uri",
        treatment=_CARRIED,
        v1_name="image_name",
        note=f"the default job name starts with the image's name. {PROCESSES} uses the Python of your program, not the "
        "image",
    ),
    Argument(
        name="framework_version",
        treatment=_CHANGED,
        owner=_FRAMEWORK,
        note=f"optional. {PROCESSES} runs the installed version, and warns if you request a different version",
    ),
    Argument(
        name="py_version",
        treatment=_CHANGED,
        owner=_FRAMEWORK,
        note=f"optional. {PROCESSES} uses the Python of your program, and warns if you request a different version",
    ),
    Argument(
        name="compiler_config",
        treatment=_REFUSED,
        owner=_FRAMEWORK,
        note="current AWS images no longer contain SageMaker Training Compiler",
    ),
    Argument(
        name="training_repository_access_mode",
        treatment=_AWS,
        note="tells SageMaker how to access the image's registry",
    ),
    Argument(
        name="training_repository_credentials_provider_arn",
        treatment=_AWS,
        note="tells SageMaker how to sign in to the image's registry",
    ),
    # data and output
    Argument(name="input_mode", treatment=_CARRIED, note="'File', 'Pipe' and 'FastFile', on every backend"),
    Argument(
        name="model_uri",
        treatment=_CHANGED,
        accepts=_PATH,
        note="also a path. In local jobs, the model's channel is like any other input channel",
    ),
    Argument(name="model_channel_name", treatment=_CARRIED),
    Argument(
        name="output_path",
        treatment=_CHANGED,
        accepts=_PATH,
        note="also a path or file:// URI. For local jobs, the default is the folder of job records",
    ),
    Argument(
        name="output_kms_key",
        treatment=_AWS,
        note="AWS KMS keys can encrypt only objects on S3. For local jobs, use an encrypted disk",
    ),
    Argument(
        name="disable_output_compression",
        treatment=_AWS,
        note="local outputs are packed as model.tar.gz and output.tar.gz",
        neutral=(None, False),
    ),
    Argument(
        name="model_dir",
        treatment=_CHANGED,
        accepts="str | os.PathLike[str] | Literal[False] | None",
        owner=_TF,
        note="the same rules as in the SDK. With a local output, the default <output_path>/<job>/model is a plain path",
    ),
    # limits and spot
    Argument(name="max_run", treatment=_CARRIED, v1_name="train_max_run"),
    Argument(
        name="use_spot_instances",
        treatment=_CARRIED,
        v1_name="train_use_spot_instances",
        note="on EC2, fleetfit requests real spot instances. On your own hosts, "
        "`RunOptions(spot_market=SpotMarket(…))` simulates interruptions and the return of hosts",
    ),
    Argument(name="max_wait", treatment=_CARRIED, v1_name="train_max_wait"),
    Argument(
        name="max_retry_attempts",
        treatment=_CHANGED,
        note="SageMaker retries only after its own internal errors. Local jobs are also retried after a failure of the "
        "script, unless a retry would fail in the same way. More options: "
        "`RunOptions(failure_policy=FailurePolicy(…))`",
    ),
    Argument(
        name="checkpoint_s3_uri",
        treatment=_CHANGED,
        accepts=_PATH,
        note="also a path or file:// URI. For local jobs, the default is a folder in the job record",
    ),
    Argument(
        name="checkpoint_local_path",
        treatment=_CHANGED,
        accepts=_PATH,
        note=f"with checkpoint_s3_uri, {PROCESSES} refuses other values than '/opt/ml/checkpoints'. The script finds "
        "its checkpoints in the folder that SM_CHECKPOINT_DIR names",
    ),
    # observability
    Argument(
        name="metric_definitions",
        treatment=_CHANGED,
        accepts="Sequence[Mapping[str, str]] | None",
        note="the first group of a regex is the number. fleetfit refuses a regex without a group",
    ),
    Argument(
        name="enable_sagemaker_metrics",
        treatment=_CARRIED,
        note="without effect for local jobs, because all metrics are kept",
    ),
    Argument(
        name="rules",
        treatment=_REFUSED,
        note="rules belong to SageMaker Debugger, a service of AWS",
        neutral=(None, []),
    ),
    Argument(
        name="debugger_hook_config",
        treatment=_REFUSED,
        note="SageMaker Debugger is a service of AWS. Only None and False are accepted",
        neutral=(None, False),
    ),
    Argument(
        name="tensorboard_output_config",
        treatment=_REFUSED,
        note="with this argument, SageMaker copies event files to S3. Instead, write event files below "
        "SM_OUTPUT_DATA_DIR",
    ),
    Argument(
        name="profiler_config",
        treatment=_REFUSED,
        note="SageMaker Profiler is a service of AWS",
    ),
    Argument(
        name="disable_profiler",
        treatment=_REFUSED,
        note="fleetfit has no profiler, so True, False and None have no effect. Only other values are refused",
        neutral=(None, True, False),
    ),
    Argument(
        name="enable_remote_debug",
        treatment=_AWS,
        note="opens a session in a container on AWS. A local process can be debugged on its own machine",
        neutral=(None, False),
    ),
    # network and security
    Argument(name="subnets", treatment=_AWS, accepts=_TEXTS, note="a VPC exists on AWS only"),
    Argument(name="security_group_ids", treatment=_AWS, accepts=_TEXTS, note="a VPC exists on AWS only"),
    Argument(
        name="encrypt_inter_container_traffic",
        treatment=_AWS,
        note="local jobs cannot encrypt their traffic. On one machine, the traffic stays on the loopback interface",
        neutral=(None, False),
    ),
    Argument(
        name="enable_network_isolation",
        treatment=_AWS,
        note="also works for local containers. Processes of this machine share the machine's network",
        neutral=(None, False),
        containers=True,
    ),
    Argument(
        name="enable_infra_check",
        treatment=_AWS,
        note="SageMaker checks its own instances. `fleetfit doctor` checks this machine",
        neutral=(None, False),
    ),
    Argument(
        name="enable_session_tag_chaining",
        treatment=_AWS,
        note="session tags belong to AWS roles",
        neutral=(None, False),
    ),
    # the rest
    Argument(
        name="distribution",
        treatment=_CHANGED,
        accepts="Distribution | Mapping[str, Any] | None",
        v1_name="distributions",
        note="also a strategy object, such as MPI(processes_per_host=2). smdistributed and pytorchxla are not "
        "available. The estimator refuses unknown keys, two strategies, a missing 'enabled', and strategies "
        "of other frameworks",
    ),
    Argument(name="base_job_name", treatment=_CARRIED),
    Argument(
        name="sagemaker_session",
        treatment=_CHANGED,
        note="also a boto3 session. Local jobs use only the session's region",
    ),
    Argument(
        name="tags",
        treatment=_CARRIED,
        accepts="Sequence[Mapping[str, str]] | Mapping[str, str] | None",
        note="without effect locally",
    ),
    # fleetfit's own arguments
    Argument(
        name="arguments",
        treatment=_OWN,
        accepts=_PATHS,
        note="more command-line arguments for the script, for example ['--fp16', '--layers', '64', '32']. The script "
        "gets them unchanged, after the hyperparameters. Use arguments for flags, options with several values, and "
        "values with a leading dash",
    ),
    Argument(
        name="hang_timeout",
        treatment=_OWN,
        note="a time limit in seconds (default: none). If no rank prints or reports anything for this time, "
        "fleetfit logs the stack of every rank, and the job fails",
    ),
    Argument(
        name="capture_limit",
        treatment=_OWN,
        note="if entry_point is a function: the maximum size, in bytes, of the values that the function captures. "
        "Default: 10,000,000",
    ),
    Argument(
        name="run_options",
        treatment=_OWN,
        note="RunOptions: for example grace times, the interpreter, the options of the backend, the reaction to NaN "
        "and to ranks that train separately",
    ),
)

BY_NAME: Mapping[str, Argument] = {argument.name: argument for argument in ARGUMENTS}
BY_V1_NAME: Mapping[str, Argument] = {item.v1_name: item for item in ARGUMENTS if item.v1_name is not None}


def read_arguments(given: Mapping[str, Any], *, constructor: str, owners: Iterable[Owner]) -> dict[str, Any]:
    """Read the keywords of a constructor. Rename old names, and raise errors for unknown and refused arguments.

    Args:
        given: The keywords.
        constructor: The name of the constructor, for errors.
        owners: The owners of the arguments that the constructor accepts.

    Returns:
        The values by the arguments' names in the SageMaker SDK 2.x. Refused arguments with neutral values are omitted.

    Raises:
        ArgumentNameError: the constructor does not accept a name. The message suggests the most similar name.
        ConfigurationError: an argument is given with both its old name and its new name.
        UnsupportedError: an argument is refused. The message contains the reason.
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
            warn(f"{name} is a name of the SageMaker SDK 1.x. Use {renamed.name}.", DeprecationWarning)
            argument = renamed
        if argument is None:
            other = BY_NAME.get(name)
            if other is not None:
                raise ArgumentNameError(f"{constructor}: {name} is an argument of {other.owner.value} only.")
            names = [item.name for item in allowed.values() if item.treatment is not Treatment.REFUSED]
            raise ArgumentNameError(unknown(f"argument of {constructor}", name, names))
        if argument.treatment is Treatment.REFUSED:
            if not asks_for_nothing(argument, value):
                masked = shown(mask_value(argument.name, value))
                raise UnsupportedError(f"{constructor}: {argument.name}={masked} is refused: {argument.note}.")
            continue
        values[argument.name] = value
    return values


def asks_for_nothing(argument: Argument, value: Any) -> bool:
    """Return whether a value has the same effect as leaving the argument out (``argument.neutral``)."""
    return any(value is neutral or (type(value) is type(neutral) and value == neutral) for neutral in argument.neutral)


def refuse_locally(values: Mapping[str, Any], instance_type: str) -> None:
    """Raise an error if an argument that only AWS supports is used with an instance type that fleetfit runs itself.

    Raises:
        UnsupportedError: an argument is not supported. The message contains the reason and an alternative.
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
