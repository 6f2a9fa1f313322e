"""Which strategies go with which framework's estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import (
    MPI,
    CollectiveAllReduce,
    ConfigurationError,
    ElasticHorovod,
    ElasticTorchDistributed,
    Estimator,
    Mirrored,
    ParameterServer,
    PyTorch,
    TensorFlow,
    TorchDistributed,
)


@pytest.mark.parametrize("given", [{"torch_distributed": {"enabled": True}}, {"pytorchddp": {"enabled": True}}])
def test_sagemakers_dicts(given: dict[str, dict[str, bool]]) -> None:
    estimator = PyTorch("train.py", distribution=given)
    assert estimator.distribution == TorchDistributed()
    assert estimator.hyperparameters()["sagemaker_torch_distributed_enabled"] == "true"


@pytest.mark.parametrize(
    "distribution", [MPI(), ElasticHorovod(), ElasticTorchDistributed(), TorchDistributed(processes_per_host=2), None]
)
def test_what_pytorch_takes(distribution: object) -> None:
    assert PyTorch("train.py", distribution=distribution).distribution == distribution


@pytest.mark.parametrize("distribution", [ParameterServer(), CollectiveAllReduce(), Mirrored()])
def test_what_pytorch_refuses_by_name(distribution: ParameterServer) -> None:
    remedy = "for PyTorch, use one of 'mpi', 'elastic_horovod', 'torch_distributed'"
    with pytest.raises(ConfigurationError, match=f"{distribution.key!r} is for TensorFlow scripts.*{remedy}"):
        PyTorch("train.py", distribution=distribution)
    estimator = PyTorch("train.py")
    with pytest.raises(ConfigurationError, match="is for TensorFlow scripts"):
        estimator.distribution = distribution
    Estimator(entry_point="train.py", distribution=distribution)  # which knows no framework


def test_tensorflow_refuses_torch_distributed() -> None:
    with pytest.raises(ConfigurationError, match="'torch_distributed' is for PyTorch scripts; for TensorFlow, use"):
        TensorFlow(entry_point="train.py", distribution=TorchDistributed())


def test_arguments_of_the_other() -> None:
    with pytest.raises(TypeError, match="model_dir is an argument of TensorFlow only"):
        PyTorch("train.py", model_dir="x")
    estimator = PyTorch("train.py", "2.13", "py311", "code", {"epochs": 3})
    assert (estimator.entry_point, estimator.framework_version, estimator.source_dir) == ("train.py", "2.13", "code")
    assert "--model_dir" not in str(estimator.hyperparameters())


@pytest.mark.parametrize(
    ("kind", "settings", "files", "named"),
    [
        (Estimator, {}, {"train.py": "import sklearn"}, ""),
        (PyTorch, {}, {"train.py": "import my_nets"}, "torch"),
        (Estimator, {"distribution": TorchDistributed()}, {"train.py": "import my_nets"}, "torch"),
        (Estimator, {"distribution": MPI()}, {"train.py": "from mpi4py import MPI"}, ""),
        (Estimator, {}, {"train.py": "from keras import layers"}, "tensorflow"),
        (Estimator, {}, {"train.py": "import helper", "helper.py": "import tensorflow as tf"}, "tensorflow"),
        (Estimator, {}, {"train.py": "import helper", "helper.py": "import os, lightning"}, "torch"),
        (Estimator, {}, {"train.py": "import pandas  # no torch here", "README.md": "like PyTorch"}, ""),
        (Estimator, {"distribution": MPI()}, {"train.py": "from horovod import torch as hvd"}, "torch"),
        (PyTorch, {"distribution": MPI()}, {"train.py": "from container import distributed"}, "torch"),
        (Estimator, {}, {"train.py": "from transformers import TFAutoModel"}, "tensorflow"),
        (Estimator, {}, {"train.py": "import x", "requirements.txt": "tf-agents"}, "tensorflow"),
        (Estimator, {}, {"train.py": "import x", "wheels/x-1-py3-none-any.whl": "PK"}, "tensorflow"),
        (Estimator, {"distribution": MPI()}, {"train.py": "import horovod.torch as hvd"}, "torch"),
        (Estimator, {"distribution": ParameterServer()}, {"train.py": "pass"}, "tensorflow"),
        (TensorFlow, {}, {"train.py": "pass"}, "tensorflow"),
        (Estimator, {"hyperparameters": {"backend": "tensorflow"}}, {"train.py": "pass"}, "tensorflow"),
        (Estimator, {"environment": {"KERAS_BACKEND": "torch"}}, {"train.py": "import keras"}, "tensorflow torch"),
        (Estimator, {"environment": {"KERAS_BACKEND": "tensorflow"}}, {"train.py": "pass"}, "tensorflow"),
        (Estimator, {"arguments": ["--with", "keras"]}, {"train.py": "pass"}, "tensorflow"),
        (Estimator, {"distribution": MPI()}, {"train.py": "from container import distributed"}, "tensorflow"),
        (Estimator, {}, {"train.py": "from container import checkpoint"}, ""),
        (Estimator, {"instance_type": "local_process"}, {"train.py": "pass"}, "tensorflow"),  # it is made for nobody
    ],
)
def test_which_frameworks_an_environment_has_that_is_made_for_a_job(
    kind: type[Estimator], settings: dict[str, Any], files: dict[str, str], named: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    estimator = kind(
        **{"entry_point": "train.py", "source_dir": str(tmp_path), "instance_type": "ssh", **settings}  # type: ignore[arg-type]
    )
    assert " ".join(estimator._draft(None, None).options.frameworks) == named


def test_a_function_names_what_it_uses() -> None:
    def plain() -> int:
        return 1

    def trains() -> None:
        import tensorflow as tf

        tf.constant(1)

    for function in (plain, trains):
        estimator = Estimator(entry_point=function, instance_type="ssh")
        # This file, whose lines tracebacks show, goes with both and names both frameworks.
        assert estimator._draft(None, None).options.frameworks == ("tensorflow", "torch")
    caller: dict[str, Any] = {"__name__": "__main__"}
    exec("def plain(): return 1", caller)
    assert not Estimator(entry_point=caller["plain"], instance_type="ssh")._draft(None, None).options.frameworks
