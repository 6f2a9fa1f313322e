"""Replace ``sagemaker_training.environment``: provide the facts about a job as attributes.

The values are those of the ``SM_*`` variables. Source of the names: sagemaker-training-toolkit, ``environment.py``.
"""

from __future__ import annotations

import json
import os
from typing import Any

base_dir = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
code_dir = os.path.join(base_dir, "code")
model_dir = os.path.join(base_dir, "model")
input_dir = os.path.join(base_dir, "input")
input_config_dir = os.path.join(input_dir, "config")
output_dir = os.path.join(base_dir, "output")
output_data_dir = os.path.join(output_dir, "data")
output_intermediate_dir = os.path.join(output_dir, "intermediate")

_TEXTS = (
    "current_host", "current_instance_group", "current_instance_type", "input_config_dir", "input_dir", "model_dir",
    "module_dir", "module_name", "network_interface_name", "output_data_dir", "output_dir", "output_intermediate_dir",
    "user_entry_point",
)  # fmt: skip
_VALUES = (
    "current_instance_group_hosts", "distribution_instance_groups", "hosts", "input_data_config", "instance_groups",
    "instance_groups_dict", "is_hetero", "log_level", "num_cpus", "num_gpus", "num_neurons", "resource_config",
)  # fmt: skip
_RENAMED = {"hyperparameters": "SM_HPS", "additional_framework_parameters": "SM_FRAMEWORK_PARAMS"}


class Environment:
    """The facts about a job on this host, under the names that SageMaker's training toolkit uses.

    Args:
        resource_config: Must be None, because only the values of the current job are supported.
        input_data_config: Must be None.
        hyperparameters: Must be None.

    Raises:
        RuntimeError: this process does not belong to a job.
        TypeError: an argument is not None.
    """

    def __init__(
        self, resource_config: object = None, input_data_config: object = None, hyperparameters: object = None
    ) -> None:
        if any(given is not None for given in (resource_config, input_data_config, hyperparameters)):
            raise TypeError("fleetfit's Environment() takes no arguments: it reads the SM_* variables of the job.")
        if "SM_HOSTS" not in os.environ:
            raise RuntimeError("this process belongs to no training job: there are no SM_* variables.")
        for name in _TEXTS:
            setattr(self, name, os.environ.get(_variable(name), ""))
        for name in (*_VALUES, *_RENAMED):
            text = os.environ.get(_variable(name))
            setattr(self, name, json.loads(text) if text else None)
        self.job_name = os.environ.get("TRAINING_JOB_NAME", "")
        self.framework_module = os.environ.get("SM_FRAMEWORK_MODULE") or None
        self.channel_input_dirs = {
            name: os.environ[f"SM_CHANNEL_{name.upper()}"] for name in json.loads(os.environ.get("SM_CHANNELS", "[]"))
        }
        hosts: list[str] = json.loads(os.environ["SM_HOSTS"])
        self.master_hostname = hosts[0]
        self.is_master = os.environ.get("SM_CURRENT_HOST") == hosts[0]
        self.distribution_hosts = hosts if json.loads(os.environ.get("SM_DISTRIBUTION_INSTANCE_GROUPS", "[]")) else []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"fleetfit's Environment has no {name!r}. It has: {', '.join(sorted(vars(self)))}.")

    def to_cmd_args(self) -> list[str]:
        """Return the hyperparameters as command-line arguments of the script."""
        arguments: list[str] = json.loads(os.environ.get("SM_USER_ARGS", "[]"))
        return arguments

    def to_env_vars(self) -> dict[str, str]:
        """Return the ``SM_*`` variables."""
        return {name: value for name, value in os.environ.items() if name.startswith("SM_")}


def read_hyperparameters() -> dict[str, Any]:
    """Return the user's hyperparameters, converted to their types."""
    return dict(Environment().hyperparameters)


def read_resource_config() -> dict[str, Any]:
    """Return the content of ``resourceconfig.json``."""
    return dict(Environment().resource_config)


def read_input_data_config() -> dict[str, Any]:
    """Return the content of ``inputdataconfig.json``."""
    return dict(Environment().input_data_config)


def channel_path(channel: str) -> str:
    """Return a channel's folder."""
    return str(Environment().channel_input_dirs[channel])


def num_gpus() -> int:
    """Return the number of GPUs of the host."""
    return int(Environment().num_gpus)


def num_cpus() -> int:
    """Return the number of cores of the host."""
    return int(Environment().num_cpus)


def _variable(name: str) -> str:
    return _RENAMED.get(name, f"SM_{name.upper()}")
