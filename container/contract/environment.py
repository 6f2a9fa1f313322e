"""Define a host's description of its job: the contents of the configuration files and facts about the host's machine.

The ``SM_*`` variables follow SageMaker's training toolkit (``environment.py``, ``to_env_vars``), so that a script
written for that toolkit runs unchanged.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from container.contract import variables
from container.contract.frozen import dataclass
from container.contract.layout import MLTree, rebased
from container.contract.membership import natural_key
from container.contract.strategies import Distribution, strategy_from_hyperparameters

#: The longest ``NAME=value`` string that Linux passes to a process (MAX_ARG_STRLEN), less the final NUL.
STRING_LIMIT = 131071

_DEFAULT_GROUP = "homogeneousCluster"

#: SageMaker's toolkit uses this name if the instance type is unknown.
_NO_INSTANCE_TYPE = "local"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The facts about a host's machine that determine which processes are started, and how.

    Attributes:
        python: The Python interpreter that runs the user's scripts and fleetfit's wrappers.
        cpus: Number of cores that this process may use.
        gpus: Number of visible GPUs.
        mpirun: Path of mpirun, or None if mpirun is not installed.
        mpi_major: Major version of the Open MPI that ``mpirun`` belongs to, 4 or 5.
        shared: Whether several hosts of the cluster are processes on this one machine.
        hosts_here: Number of hosts of the cluster that are containers on this machine, and therefore share its cores.
        network: The network that the hosts share, such as ``172.18.0.0/16``. None if the network cannot be determined.
        container_package: The folder of the ``container`` package.
    """

    python: str
    cpus: int
    gpus: int = 0
    mpirun: str | None = None
    mpi_major: int = 4
    shared: bool = False
    hosts_here: int = 1
    network: str | None = None
    container_package: str = ""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The description of a job on one host, read from the host's configuration files.

    Attributes:
        tree: The host's file tree.
        machine: Facts about the host's machine.
        job_name: The training job's name.
        current_host: This host's name.
        hosts: All hosts' names, in rank order (``algo-2`` before ``algo-10``).
        hyperparameters: The user's own hyperparameters, decoded.
        framework_parameters: The reserved hyperparameters that do not configure the toolkit, such as the strategies'
            hyperparameters and all hyperparameters ``fleetfit_*``.
        toolkit_parameters: The reserved hyperparameters that configure the toolkit, such as ``sagemaker_program`` and
            ``sagemaker_submit_directory``.
        resource_config: The content of ``resourceconfig.json``.
        input_data_config: The content of ``inputdataconfig.json``.
        attempt: The number of this attempt of the job, from 0.
        user_environment: The environment variables that the user set (CreateTrainingJob's ``Environment``).
        addresses: The addresses of hosts whose names do not resolve, by the hosts' names.
    """

    tree: MLTree
    machine: Machine
    job_name: str
    current_host: str
    hosts: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    framework_parameters: Mapping[str, Any]
    toolkit_parameters: Mapping[str, Any]
    resource_config: Mapping[str, Any]
    input_data_config: Mapping[str, Any]
    attempt: int = 0
    user_environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_config(
        cls,
        *,
        base_dir: str | Path,
        machine: Machine,
        hyperparameters: Mapping[str, Any],
        resource_config: Mapping[str, Any],
        input_data_config: Mapping[str, Any],
        job_name: str = "",
        attempt: int = 0,
        user_environment: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
        shared_checkpoints: str | None = None,
    ) -> Environment:
        """Create an environment from the contents of the three configuration files.

        In hyperparameters, paths below ``/opt/ml`` are replaced by paths below ``base_dir`` (see
        :func:`container.contract.layout.rebased`).

        Raises:
            ValueError: the files contradict each other.
        """
        tree = MLTree(Path(base_dir), shared_checkpoints)
        decoded = codec.decode(hyperparameters)
        if codec.ARGUMENTS in decoded:
            decoded[codec.ARGUMENTS] = rebased(decoded[codec.ARGUMENTS], tree)
        user = {name: rebased(value, tree) for name, value in decoded.items() if not codec.is_reserved(name)}
        variables_given = user_environment or {}
        named = {
            codec.PROGRAM: codec.program(decoded, variables_given),
            codec.SUBMIT_DIRECTORY: codec.submit_directory(decoded, variables_given),
        }
        hosts = tuple(sorted(resource_config.get("hosts") or ["algo-1"], key=natural_key))
        current = str(resource_config.get("current_host") or hosts[0])
        if current not in hosts:
            raise ValueError(f"resourceconfig.json: current_host {current!r} is not among hosts {list(hosts)}.")
        return cls(
            tree=tree,
            machine=machine,
            job_name=job_name or str(decoded.get(codec.JOB_NAME) or ""),
            current_host=current,
            hosts=hosts,
            hyperparameters=user,
            framework_parameters={
                name: value
                for name, value in decoded.items()
                if codec.is_reserved(name) and name not in codec.TOOLKIT_PARAMETERS
            },
            toolkit_parameters={
                **{name: value for name, value in decoded.items() if name in codec.TOOLKIT_PARAMETERS},
                **{name: value for name, value in named.items() if value is not None},
            },
            resource_config=dict(resource_config),
            input_data_config=dict(input_data_config),
            attempt=attempt,
            user_environment=dict(user_environment or {}),
            addresses=dict(addresses or {}),
        )

    @property
    def strategy(self) -> Distribution | None:
        """Return the job's distribution strategy. Return None if the job is not distributed."""
        return strategy_from_hyperparameters(self.framework_parameters)

    @property
    def program(self) -> str:
        """Return the entry point: ``train.py``, ``train.sh``, or a module's name.

        Raises:
            ValueError: the job names no entry point.
        """
        program = self.toolkit_parameters.get(codec.PROGRAM)
        if not program:
            raise ValueError(
                f"the job names no entry point: hyperparameters.json has no {codec.PROGRAM!r}, and the variable "
                f"{codec.PROGRAM_VARIABLE} is not set."
            )
        return str(program)

    @property
    def master(self) -> str:
        """Return the name of the first host, which coordinates the other hosts."""
        return self.hosts[0]

    @property
    def is_master(self) -> bool:
        """Return whether this host coordinates the other hosts."""
        return self.current_host == self.master

    @property
    def network_interface(self) -> str:
        """Return the name of the network interface for traffic between hosts, from ``resourceconfig.json``."""
        return str(self.resource_config.get("network_interface_name") or "eth0")

    @property
    def reserves_ports(self) -> bool:
        """Return whether the host must reserve ports, because other hosts or other jobs may use the same machine."""
        return self.machine.shared or bool(self.addresses)

    def to_cmd_args(self) -> list[str]:
        """Return the script's arguments: the user's hyperparameters, followed by the job's additional arguments."""
        arguments = self.framework_parameters.get(codec.ARGUMENTS) or ()
        return codec.to_cmd_args(self.hyperparameters, [str(word) for word in arguments])

    def for_host(self, host: str) -> Environment:
        """Return a description of the same job for another host. The paths remain those of this host."""
        resource_config = {**self.resource_config, "current_host": host}
        return dataclasses.replace(self, current_host=host, resource_config=resource_config)

    def to_env_vars(self) -> dict[str, str]:
        """Return the environment variables that SageMaker sets for a host's processes.

        The result contains the variables ``SM_*``. The result also contains the variables that SageMaker's training
        toolkit sets for itself, because scripts for this toolkit also read these variables. ``PYTHONPATH`` and
        TensorFlow's variables are not included.

        Raises:
            ValueError: a value is too long for a process's environment.
        """
        values = self._values()
        values["training_env"] = self._training_env(values)
        for name in self.input_data_config:
            values[f"channel_{name}"] = str(self.tree.channel(name))
        for name, value in self.hyperparameters.items():
            values[f"hp_{name}"] = value
        env = codec.to_env_vars(values)
        env[variables.CHECKPOINT_DIR] = self.tree.real_checkpoints
        env["CURRENT_HOST"] = self.current_host
        env["SAGEMAKER_JOB_NAME"] = str(self.toolkit_parameters.get(codec.JOB_NAME) or self.job_name)
        env["SAGEMAKER_REGION"] = str(self.toolkit_parameters.get(codec.REGION) or self._region)
        for name, text in env.items():
            if len(name) + 1 + len(text.encode()) > STRING_LIMIT:
                if name == "SM_TRAINING_ENV":
                    continue
                raise ValueError(
                    f"{name} would have {len(text)} characters; Linux passes at most {STRING_LIMIT} in one variable. "
                    "Put the large values into a file of a channel."
                )
        if len(env["SM_TRAINING_ENV"]) + len("SM_TRAINING_ENV=") > STRING_LIMIT:
            del env["SM_TRAINING_ENV"]  # this variable only repeats the other variables
        return env

    @property
    def _region(self) -> str:
        """Return the AWS region that the user's environment variables name. Return "" if these variables name no
        region.
        """
        given = (self.user_environment.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
        return next(filter(None, given), "")

    def _values(self) -> dict[str, Any]:
        groups = self.resource_config.get("instance_groups") or []
        group = str(self.resource_config.get("current_group_name") or _DEFAULT_GROUP)
        distributed = [group] if self.strategy is not None else []
        program = str(self.toolkit_parameters.get(codec.PROGRAM) or "")
        return {
            "hosts": list(self.hosts),
            "network_interface_name": self.network_interface,
            "hps": dict(self.hyperparameters),
            "user_entry_point": program,
            "framework_params": dict(self.framework_parameters),
            "resource_config": dict(self.resource_config),
            "input_data_config": dict(self.input_data_config),
            "output_data_dir": str(self.tree.output_data),
            "channels": sorted(self.input_data_config),
            "current_host": self.current_host,
            "current_instance_type": str(self.resource_config.get("current_instance_type") or _NO_INSTANCE_TYPE),
            "current_instance_group": group,
            "current_instance_group_hosts": next(
                (list(item["hosts"]) for item in groups if item.get("instance_group_name") == group), []
            ),
            "instance_groups": [item.get("instance_group_name") for item in groups],
            "instance_groups_dict": {item.get("instance_group_name"): item for item in groups},
            "distribution_instance_groups": self.framework_parameters.get(
                "sagemaker_distribution_instance_groups", distributed
            ),
            "is_hetero": len(groups) > 1,
            "module_name": program[:-3] if program.endswith(".py") else program,
            "log_level": self.toolkit_parameters.get(codec.LOG_LEVEL, 20),
            "framework_module": None,
            "input_dir": str(self.tree.input),
            "input_config_dir": str(self.tree.config),
            "output_dir": str(self.tree.output),
            "num_cpus": self.machine.cpus,
            "num_gpus": self.machine.gpus,
            "num_neurons": 0,
            "model_dir": str(self.tree.model),
            "module_dir": str(self.toolkit_parameters.get(codec.SUBMIT_DIRECTORY) or self.tree.code),
            "user_args": self.to_cmd_args(),
            "output_intermediate_dir": str(self.tree.output_intermediate),
        }

    def _training_env(self, values: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in values.items() if name not in ("hps", "framework_params", "user_args")}
        groups = self.resource_config.get("instance_groups") or []
        distributed = values["distribution_instance_groups"]
        training = [host for item in groups if item.get("instance_group_name") in distributed for host in item["hosts"]]
        return {
            **kept,
            # SageMaker's toolkit reports AWS's own libraries and machines here; fleetfit has none of them.
            "is_modelparallel_enabled": None,
            "is_smddprun_installed": False,
            "is_smddpmprun_installed": False,
            "topology": [],
            "distribution_hosts": training if groups else list(self.hosts),
            "hyperparameters": values["hps"],
            "additional_framework_parameters": values["framework_params"],
            "channel_input_dirs": {name: str(self.tree.channel(name)) for name in self.input_data_config},
            "is_master": self.is_master,
            "master_hostname": self.master,
            "job_name": self.job_name,
        }


def read_json_file(path: Path, default: Any = None) -> Any:
    """Read one of the configuration files.

    Args:
        path: The path of the file.
        default: The value to return if the file does not exist. If None, a missing file is an error.

    Raises:
        ValueError: the file is not JSON, or is missing and ``default`` is None. The message names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if default is None:
            raise ValueError(f"{path} is missing; SageMaker and fleetfit's backends write it.") from None
        return default
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error


def host_name(tree: MLTree, index: int) -> str:
    """Return the name of a tree's host, from the configuration files in the tree.

    Return ``algo-<index + 1>`` if the files do not name the host.

    Args:
        tree: The host's file tree.
        index: The number of the host, from 0.
    """
    try:
        name = read_json_file(tree.resource_config_file, {}).get("current_host")
    except (OSError, ValueError, AttributeError):
        name = None
    return str(name or f"algo-{index + 1}")


def hosts_here(environ: Mapping[str, str]) -> int:
    """Return the number of the cluster's hosts that are containers on this machine and share the machine's cores.
    Return 1 if the number is not given.
    """
    text = environ.get(variables.HOSTS_HERE) or "1"
    return max(1, int(text)) if text.isdecimal() else 1
