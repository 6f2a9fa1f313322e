"""fleetfit: one Estimator, every distribution strategy, any fleet.

::

    from estimators import TensorFlow, MPI

    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="entrypoints",
        instance_count=2,
        instance_type="local_process",
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
    from container.contract.failures import Failure
    from container.contract.strategies import (
        MPI,
        CollectiveAllReduce,
        Distribution,
        ElasticHorovod,
        MultiWorkerMirrored,
        ParameterServer,
    )
    from estimators.advice.recommending import Recommendation, recommend
    from estimators.analytics import TrainingJobAnalytics
    from estimators.backends.fake import FakeOutcome
    from estimators.callbacks import Callback, Metric
    from estimators.chaos import Interrupt, Kill, RemoveHost
    from estimators.comparing.comparison import Comparison
    from estimators.comparing.running import ComparisonWarning, compare
    from estimators.errors import (
        BackendError,
        ConfigurationError,
        FleetfitError,
        JobExistsError,
        JobNotFoundError,
        JobUnreachableError,
        PreflightWarning,
        RecordError,
        TrainingJobError,
        UnsupportedError,
    )
    from estimators.estimator import Estimator, TensorFlow
    from estimators.inputs import FileSystemInput, ShuffleConfig, TrainingInput
    from estimators.jobs.handle import TrainingJob
    from estimators.jobs.restarts import FailurePolicy
    from estimators.jobs.states import SecondaryStatus, TrainingJobStatus
    from estimators.planning import ClusterPlan
    from estimators.resizing import GrowWithEpochs, RandomResize
    from estimators.result import Result
    from estimators.spec import RunOptions, TrainingJobSpec
    from estimators.spot import SpotMarket

#: Module -> the public names that it has.
_MODULES = {
    "container.contract.failures": ("Failure",),
    "container.contract.strategies": (
        "CollectiveAllReduce",
        "Distribution",
        "ElasticHorovod",
        "MPI",
        "MultiWorkerMirrored",
        "ParameterServer",
    ),
    "estimators.advice.recommending": ("Recommendation", "recommend"),
    "estimators.analytics": ("TrainingJobAnalytics",),
    "estimators.backends.fake": ("FakeOutcome",),
    "estimators.callbacks": ("Callback", "Metric"),
    "estimators.chaos": ("Interrupt", "Kill", "RemoveHost"),
    "estimators.comparing.comparison": ("Comparison",),
    "estimators.comparing.running": ("ComparisonWarning", "compare"),
    "estimators.errors": (
        "BackendError",
        "ConfigurationError",
        "FleetfitError",
        "JobExistsError",
        "JobNotFoundError",
        "JobUnreachableError",
        "PreflightWarning",
        "RecordError",
        "TrainingJobError",
        "UnsupportedError",
    ),
    "estimators.estimator": ("Estimator", "TensorFlow"),
    "estimators.inputs": ("FileSystemInput", "ShuffleConfig", "TrainingInput"),
    "estimators.jobs.handle": ("TrainingJob",),
    "estimators.jobs.restarts": ("FailurePolicy",),
    "estimators.jobs.states": ("SecondaryStatus", "TrainingJobStatus"),
    "estimators.planning": ("ClusterPlan",),
    "estimators.resizing": ("GrowWithEpochs", "RandomResize"),
    "estimators.result": ("Result",),
    "estimators.spec": ("RunOptions", "TrainingJobSpec"),
    "estimators.spot": ("SpotMarket",),
}

_ORIGINS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "MPI",
    "BackendError",
    "Callback",
    "ClusterPlan",
    "CollectiveAllReduce",
    "Comparison",
    "ComparisonWarning",
    "ConfigurationError",
    "Distribution",
    "ElasticHorovod",
    "Estimator",
    "Failure",
    "FailurePolicy",
    "FakeOutcome",
    "FileSystemInput",
    "FleetfitError",
    "GrowWithEpochs",
    "Interrupt",
    "JobExistsError",
    "JobNotFoundError",
    "JobUnreachableError",
    "Kill",
    "Metric",
    "MultiWorkerMirrored",
    "ParameterServer",
    "PreflightWarning",
    "RandomResize",
    "Recommendation",
    "RecordError",
    "RemoveHost",
    "Result",
    "RunOptions",
    "SecondaryStatus",
    "ShuffleConfig",
    "SpotMarket",
    "TensorFlow",
    "TrainingInput",
    "TrainingJob",
    "TrainingJobAnalytics",
    "TrainingJobError",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "UnsupportedError",
    "compare",
    "recommend",
]


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_ORIGINS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
