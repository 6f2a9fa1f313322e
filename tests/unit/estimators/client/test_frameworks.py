"""Which strategies go with which framework's estimator."""

from __future__ import annotations

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
    with pytest.raises(ConfigurationError, match=f"{distribution.key!r} is for TensorFlow scripts") as caught:
        PyTorch("train.py", distribution=distribution)
    assert "for PyTorch there are 'mpi', 'elastic_horovod', 'torch_distributed'" in str(caught.value)
    estimator = PyTorch("train.py")
    with pytest.raises(ConfigurationError, match="is for TensorFlow scripts"):
        estimator.distribution = distribution
    Estimator(entry_point="train.py", distribution=distribution)  # which knows no framework


def test_tensorflow_refuses_torch_distributed() -> None:
    with pytest.raises(ConfigurationError, match="'torch_distributed' is for PyTorch scripts; for TensorFlow there"):
        TensorFlow(entry_point="train.py", distribution=TorchDistributed())


def test_arguments_of_the_other() -> None:
    with pytest.raises(TypeError, match="model_dir is an argument of TensorFlow only"):
        PyTorch("train.py", model_dir="x")
    estimator = PyTorch("train.py", "2.13", "py311", "code", {"epochs": 3})
    assert (estimator.entry_point, estimator.framework_version, estimator.source_dir) == ("train.py", "2.13", "code")
    assert "--model_dir" not in str(estimator.hyperparameters())
