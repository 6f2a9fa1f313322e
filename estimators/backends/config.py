"""Build the files of a host's ``/opt/ml/input/config`` with pure functions.

``plan()`` and the local backends call the same functions. Therefore ``plan()`` shows exactly the files that a job gets.

Source: "How Amazon SageMaker Provides Training Information" (AWS documentation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract import variables
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR, MLTree
from estimators.job.faults import step_orders
from estimators.job.request import InputChannel, RunOptions, TrainingJobSpec

#: SageMaker's name for the group of all instances of a cluster without instance groups.
INSTANCE_GROUP = "homogeneousCluster"

#: SageMaker's variable with the job's ARN.
JOB_ARN = "TRAINING_JOB_ARN"


@dataclass(frozen=True, kw_only=True)
class BackendFacts:
    """The values in a host's configuration that depend on the backend rather than on the job.

    Attributes:
        network_interface: The network interface between the hosts, which is ``lo`` for processes on one machine.
        instance_type: The instance type in the hosts' configuration. The default is the job's instance type.
        submit_directory: The path on a host to which the user's code was copied from this machine. With None, the hosts
            use the submit directory of the job's spec.
    """

    network_interface: str = "lo"
    instance_type: str | None = None
    submit_directory: str | None = None


#: The facts for hosts that are processes on this machine. The scripts see the job's own instance type.
PROCESSES = BackendFacts()


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """The configuration of one host.

    Attributes:
        hyperparameters: The content of ``hyperparameters.json``: name -> text. All texts except the submit directory
            are verbatim from the request.
        resource_config: The content of ``resourceconfig.json``.
        input_data_config: The content of ``inputdataconfig.json``.
        environment: The environment variables for the host's toolkit, the fleetfit process that starts the script: the
            user's variables, the job's name and the job's ARN. Variables that a backend adds for its own purposes
            (ports, tokens) are not included.
        checkpoint_config: The content of ``checkpointconfig.json``, or None if the job has no checkpoint configuration.
    """

    hyperparameters: dict[str, str]
    resource_config: dict[str, Any]
    input_data_config: dict[str, dict[str, str]]
    environment: dict[str, str]
    checkpoint_config: dict[str, str] | None = None

    def files(self, tree: MLTree) -> dict[str, str]:
        """Return the configuration files of a host: path -> text. The paths are below the host's ``tree``."""
        contents: dict[str, Mapping[str, Any]] = {
            str(tree.hyperparameters_file): self.hyperparameters,
            str(tree.resource_config_file): self.resource_config,
            str(tree.input_data_config_file): self.input_data_config,
        }
        if self.checkpoint_config is not None:
            contents[str(tree.config / "checkpointconfig.json")] = self.checkpoint_config
        return {path: json.dumps(content, ensure_ascii=False) for path, content in contents.items()}


def _arn(spec: TrainingJobSpec) -> str:
    """Return an ARN for the job, with the invented account 000000000000."""
    region = codec.decode_value(spec.hyperparameters.get(codec.REGION)) or "local"
    return f"arn:aws:sagemaker:{region}:000000000000:training-job/{spec.name.lower()}"


def host_config(spec: TrainingJobSpec, host: str, facts: BackendFacts = PROCESSES) -> HostConfig:
    """Build the configuration of one host.

    Args:
        spec: The job.
        host: The name of one of the job's hosts.
        facts: The values that depend on the backend.

    Raises:
        ValueError: the job has no host with this name.
    """
    hosts = list(spec.hosts)
    if host not in hosts:
        raise ValueError(f"{host!r} is not a host of the job; its hosts: {', '.join(hosts)}.")
    instance_type = facts.instance_type or spec.instance_type
    environment = {**spec.environment, variables.JOB_NAME: spec.name, JOB_ARN: _arn(spec)}
    return HostConfig(
        hyperparameters=_hyperparameters(spec, facts),
        resource_config={
            "current_host": host,
            "current_instance_type": instance_type,
            "current_group_name": INSTANCE_GROUP,
            "hosts": hosts,
            "instance_groups": [
                {"instance_group_name": INSTANCE_GROUP, "instance_type": instance_type, "hosts": hosts},
            ],
            "network_interface_name": facts.network_interface,
        },
        input_data_config={channel.name: _channel_config(spec, channel) for channel in spec.inputs},
        environment=environment,
        checkpoint_config=_checkpoint_config(spec),
    )


def caller_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the caller's environment that hosts inherit.

    The variables with the name of an entry point, and the variable with the pipe for events, are left out. They are set
    if the caller itself runs in a job or an image. They then contain the entry point and the pipe of that job or image,
    and not those of the new job.
    """
    left_out = {*codec.NAMING_VARIABLES, variables.EVENTS}
    return {name: value for name, value in environment.items() if name not in left_out}


def _hyperparameters(spec: TrainingJobSpec, facts: BackendFacts) -> dict[str, str]:
    moved = {}
    place = spec.submit_directory
    # A path below /opt/ml is valid in the container already: the code is in a channel.
    if facts.submit_directory is not None and place is not None and not place.startswith(f"{DEFAULT_BASE_DIR}/"):
        moved = codec.encode({codec.SUBMIT_DIRECTORY: facts.submit_directory})
    return {**spec.hyperparameters, **moved}


def toolkit_environment(spec: TrainingJobSpec, options: RunOptions, attempt: int) -> dict[str, str]:
    """Return the environment variables from which the toolkits of all hosts learn about an attempt of the job.

    The variables are the same on all backends.
    """
    found = {
        variables.JOB_NAME: spec.name,
        variables.ATTEMPT: str(attempt),
        variables.STOP_GRACE: f"{options.longest_grace:g}",
        variables.START_TIMEOUT: f"{options.start_timeout:g}",
        variables.JOB_MARK: spec.name,
    }
    if orders := step_orders(options.faults, attempt):
        found[variables.FAULTS] = json.dumps(orders, separators=(",", ":"))
    policy = options.failure_policy.with_retries(spec.retry.max_attempts if spec.retry is not None else None)
    if policy.max_failures:
        found[variables.WORKER_RESTARTS] = str(policy.max_failures)
    return found


def input_mode(spec: TrainingJobSpec, channel: InputChannel) -> str:
    """Return a channel's input mode. If the channel has no input mode, return the job's input mode."""
    return channel.input_mode or spec.algorithm.input_mode


def _channel_config(spec: TrainingJobSpec, channel: InputChannel) -> dict[str, str]:
    s3 = channel.source.s3
    config = {
        "TrainingInputMode": input_mode(spec, channel),
        "S3DistributionType": (s3.distribution if s3 is not None else None) or "FullyReplicated",
        "RecordWrapperType": channel.record_wrapper or "None",
    }
    if channel.content_type is not None:
        config["ContentType"] = channel.content_type
    return config


def _checkpoint_config(spec: TrainingJobSpec) -> dict[str, str] | None:
    if spec.checkpoint is None:
        return None
    local_path = spec.checkpoint.local_path or f"{DEFAULT_BASE_DIR}/checkpoints"
    return {"S3Uri": spec.checkpoint.uri, "LocalPath": local_path}
