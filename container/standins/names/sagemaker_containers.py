"""Replace ``sagemaker_containers`` and its ``beta.framework``, so that scripts can call ``training_env()``."""

from __future__ import annotations

import sys

from container.standins.environment import Environment as TrainingEnv


def training_env(
    resource_config: object = None, input_data_config: object = None, hyperparameters: object = None
) -> TrainingEnv:
    """Return the environment of this process's job."""
    return TrainingEnv(resource_config, input_data_config, hyperparameters)


__path__: list[str] = []
beta = framework = sys.modules[__name__]
sys.modules[f"{__name__}.beta"] = sys.modules[f"{__name__}.beta.framework"] = beta

__all__ = ["TrainingEnv", "beta", "framework", "training_env"]
