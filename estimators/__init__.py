"""fleetfit: one Estimator, every distribution strategy, any fleet.

::

    from estimators import TensorFlow, MPI

    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="entrypoints",
        instance_count=2,
        distribution=MPI(processes_per_host=2),
        hyperparameters={"epochs": 4, "batch-size": 256},
    )
    job = estimator.fit({"train": "data/digits"})

Names are imported when they are used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from container.contract.channels import Channel
    from container.contract.failures import Failure
    from container.contract.strategies import (
        MPI,
        CollectiveAllReduce,
        Distribution,
        ElasticHorovod,
        ElasticTorchDistributed,
        Mirrored,
        ParameterServer,
        TorchDistributed,
    )
    from estimators.backends.fake import FakeOutcome
    from estimators.client.analytics import TrainingJobAnalytics
    from estimators.client.callbacks import Callback, Metric
    from estimators.client.cluster_plan import ClusterPlan
    from estimators.client.compare import ComparisonWarning, compare
    from estimators.client.estimator import Estimator, PyTorch, TensorFlow
    from estimators.client.functions.remote import RemoteExecutor, RemoteFuture, remote
    from estimators.client.notifying import NotifyCallback
    from estimators.client.resizing import GrowWithEpochs, RandomResize
    from estimators.client.simulation.fleet import FleetRecommendation, recommend
    from estimators.client.simulation.forecast import Forecast, simulate
    from estimators.client.simulation.model import Timings
    from estimators.client.trackers.mlflow import MLflowCallback
    from estimators.client.trackers.tensorboard import TensorBoardCallback
    from estimators.client.trackers.wandb import WandbCallback
    from estimators.client.training_job import TrainingJob
    from estimators.job.errors import (
        BackendError,
        ConfigurationError,
        FleetfitError,
        JobExistsError,
        JobNotFoundError,
        JobUnreachableError,
        PreflightWarning,
        RecordError,
        TrainingJobError,
        TuningJobError,
        UnsupportedError,
    )
    from estimators.job.failure_policy import FailurePolicy
    from estimators.job.faults import Interrupt, Kill, RemoveHost
    from estimators.job.inputs import FileSystemInput, ShuffleConfig, TrainingInput
    from estimators.job.request import RunOptions, TrainingJobSpec
    from estimators.job.spot_market import SpotMarket
    from estimators.records.states import SecondaryStatus, TrainingJobStatus
    from estimators.results.advice.model import Workload
    from estimators.results.advice.recommending import Recommendation
    from estimators.results.comparison.comparison import Comparison
    from estimators.results.result import Result
    from estimators.tuning.analytics import HyperparameterTuningJobAnalytics
    from estimators.tuning.config import (
        HyperbandStrategyConfig,
        PopulationConfig,
        StrategyConfig,
        TuningJobCompletionCriteriaConfig,
        WarmStartConfig,
        WarmStartTypes,
    )
    from estimators.tuning.fleet import SharedFleetConfig
    from estimators.tuning.ranges import CategoricalParameter, ContinuousParameter, IntegerParameter
    from estimators.tuning.tuner import HyperparameterTuner

#: Module -> the public names that it has.
_MODULES = {
    "container.contract.channels": ("Channel",),
    "container.contract.failures": ("Failure",),
    "container.contract.strategies": (
        "CollectiveAllReduce",
        "Distribution",
        "ElasticHorovod",
        "ElasticTorchDistributed",
        "MPI",
        "Mirrored",
        "ParameterServer",
        "TorchDistributed",
    ),
    "estimators.results.advice.model": ("Workload",),
    "estimators.results.advice.recommending": ("Recommendation",),
    "estimators.client.analytics": ("TrainingJobAnalytics",),
    "estimators.backends.fake": ("FakeOutcome",),
    "estimators.client.callbacks": ("Callback", "Metric"),
    "estimators.job.faults": ("Interrupt", "Kill", "RemoveHost"),
    "estimators.results.comparison.comparison": ("Comparison",),
    "estimators.client.compare": ("ComparisonWarning", "compare"),
    "estimators.job.errors": (
        "BackendError",
        "ConfigurationError",
        "FleetfitError",
        "JobExistsError",
        "JobNotFoundError",
        "JobUnreachableError",
        "PreflightWarning",
        "RecordError",
        "TrainingJobError",
        "TuningJobError",
        "UnsupportedError",
    ),
    "estimators.client.estimator": ("Estimator", "PyTorch", "TensorFlow"),
    "estimators.job.inputs": ("FileSystemInput", "ShuffleConfig", "TrainingInput"),
    "estimators.client.trackers.mlflow": ("MLflowCallback",),
    "estimators.client.trackers.tensorboard": ("TensorBoardCallback",),
    "estimators.client.trackers.wandb": ("WandbCallback",),
    "estimators.client.training_job": ("TrainingJob",),
    "estimators.job.failure_policy": ("FailurePolicy",),
    "estimators.records.states": ("SecondaryStatus", "TrainingJobStatus"),
    "estimators.client.functions.remote": ("RemoteExecutor", "RemoteFuture", "remote"),
    "estimators.client.cluster_plan": ("ClusterPlan",),
    "estimators.client.simulation.fleet": ("FleetRecommendation", "recommend"),
    "estimators.client.simulation.forecast": ("Forecast", "simulate"),
    "estimators.client.simulation.model": ("Timings",),
    "estimators.client.notifying": ("NotifyCallback",),
    "estimators.client.resizing": ("GrowWithEpochs", "RandomResize"),
    "estimators.results.result": ("Result",),
    "estimators.job.request": ("RunOptions", "TrainingJobSpec"),
    "estimators.job.spot_market": ("SpotMarket",),
    "estimators.tuning.analytics": ("HyperparameterTuningJobAnalytics",),
    "estimators.tuning.config": (
        "HyperbandStrategyConfig",
        "PopulationConfig",
        "StrategyConfig",
        "TuningJobCompletionCriteriaConfig",
        "WarmStartConfig",
        "WarmStartTypes",
    ),
    "estimators.tuning.fleet": ("SharedFleetConfig",),
    "estimators.tuning.ranges": ("CategoricalParameter", "ContinuousParameter", "IntegerParameter"),
    "estimators.tuning.tuner": ("HyperparameterTuner",),
}

_ORIGINS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "MPI",
    "BackendError",
    "Callback",
    "CategoricalParameter",
    "Channel",
    "ClusterPlan",
    "CollectiveAllReduce",
    "Comparison",
    "ComparisonWarning",
    "ConfigurationError",
    "ContinuousParameter",
    "Distribution",
    "ElasticHorovod",
    "ElasticTorchDistributed",
    "Estimator",
    "Failure",
    "FailurePolicy",
    "FakeOutcome",
    "FileSystemInput",
    "FleetRecommendation",
    "FleetfitError",
    "Forecast",
    "GrowWithEpochs",
    "HyperbandStrategyConfig",
    "HyperparameterTuner",
    "HyperparameterTuningJobAnalytics",
    "IntegerParameter",
    "Interrupt",
    "JobExistsError",
    "JobNotFoundError",
    "JobUnreachableError",
    "Kill",
    "MLflowCallback",
    "Metric",
    "Mirrored",
    "NotifyCallback",
    "ParameterServer",
    "PopulationConfig",
    "PreflightWarning",
    "PyTorch",
    "RandomResize",
    "Recommendation",
    "RecordError",
    "RemoteExecutor",
    "RemoteFuture",
    "RemoveHost",
    "Result",
    "RunOptions",
    "SecondaryStatus",
    "SharedFleetConfig",
    "ShuffleConfig",
    "SpotMarket",
    "StrategyConfig",
    "TensorBoardCallback",
    "TensorFlow",
    "Timings",
    "TorchDistributed",
    "TrainingInput",
    "TrainingJob",
    "TrainingJobAnalytics",
    "TrainingJobError",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "TuningJobCompletionCriteriaConfig",
    "TuningJobError",
    "UnsupportedError",
    "WandbCallback",
    "WarmStartConfig",
    "WarmStartTypes",
    "Workload",
    "compare",
    "recommend",
    "remote",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_ORIGINS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
