"""Strategies: typed, as SageMaker's dicts, as hyperparameters, and what is refused."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import estimators
from container.contract import strategies
from container.contract.errors import ConfigurationError
from container.contract.strategies import (
    MPI,
    CollectiveAllReduce,
    ElasticTorchDistributed,
    Mirrored,
    ParameterServer,
    parse_distribution,
    strategy_from_hyperparameters,
)

AMOUNT = st.none() | st.integers(0, 10**6) | st.floats(0, 1e6)
FLAG = st.none() | st.booleans()
STRATEGIES = st.one_of(
    st.builds(
        MPI,
        processes_per_host=st.integers(1, 64),
        custom_mpi_options=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
        fusion_threshold_mb=AMOUNT,
        cycle_time_ms=AMOUNT,
        hierarchical_allreduce=FLAG,
        autotune=FLAG,
    ),
    st.builds(Mirrored, devices=st.none() | st.integers(1, 8), communication=st.sampled_from(["auto", "nccl"])),
    st.sampled_from([ParameterServer(), ParameterServer(script_on="chief"), ParameterServer(cluster_spec="sagemaker")]),
    st.builds(
        ElasticTorchDistributed,
        processes_per_host=st.integers(1, 64),
        max_hosts=st.none() | st.integers(1, 64),
        max_restarts=st.integers(0, 9),
    ),
    st.builds(
        CollectiveAllReduce,
        processes_per_host=st.integers(1, 64),
        communication=st.sampled_from(["ring", "nccl", "auto"]),
        bytes_per_pack=st.integers(0, 10**9),
        timeout_seconds=AMOUNT,
    ),
)


@given(STRATEGIES)
def test_a_strategy_survives_both_of_its_other_forms(strategy: Any) -> None:
    assert strategy_from_hyperparameters(strategy.to_hyperparameters()) == strategy
    assert parse_distribution(strategy.to_dict()) == strategy
    assert parse_distribution(strategy) is strategy


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (None, None),
        ({}, None),
        ({"mpi": {"enabled": True}}, MPI()),
        ({"mpi": {"enabled": False, "processes_per_host": 4}}, None),
        (
            {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A=b"}},
            MPI(processes_per_host=2, custom_mpi_options="-x A=b"),
        ),
        ({"parameter_server": {"enabled": True}}, ParameterServer(cluster_spec="sagemaker")),
        ({"parameter_server": {"enabled": True, "cluster_spec": "coordinator"}}, ParameterServer()),
        ({"multi_worker_mirrored_strategy": {"enabled": True}}, CollectiveAllReduce()),
        ({"collective_all_reduce": {"enabled": True, "bytes_per_pack": 9}}, CollectiveAllReduce(bytes_per_pack=9)),
        ({"mpi": {"enabled": True}, "parameter_server": {"enabled": False}}, MPI()),
    ],
)  # fmt: skip
def test_sagemakers_dicts(given_as: Any, expected: Any) -> None:
    assert parse_distribution(given_as) == expected


@pytest.mark.parametrize(
    ("given_as", "words"),
    [
        ({"mpii": {"enabled": True}}, ["'mpii'", "Did you mean 'mpi'?", "parameter_server"]),
        ({"mpi": {"enabled": True, "process_per_host": 2}}, ["Did you mean 'processes_per_host'?"]),
        ({"mpi": {"processes_per_host": 2}}, ["'enabled' is missing", "{'mpi': {'enabled': True, …}}"]),
        ({"mpi": {"enabled": "true"}}, ["must be True or False", "'true'"]),
        ({"mpi": True}, ["must be a dict", "True"]),
        ({"mpi": {"enabled": True, "processes_per_host": 0}}, ["processes_per_host", "from 1 to 1,024", "0"]),
        ({"mpi": {"enabled": True, "processes_per_host": 2.0}}, ["processes_per_host", "2.0"]),
        ({"mpi": {"enabled": True, "processes_per_host": True}}, ["processes_per_host", "True"]),
        ({"mpi": {"enabled": False, "processes_per_host": 0}}, ["processes_per_host"]),
        ({"mpi": {"enabled": True}, "parameter_server": {"enabled": True}}, ["one strategy at a time", "'mpi'"]),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, ["smdistributed", "Horovod"]),
        ({"pytorchxla": {"enabled": True}}, ["PyTorch/XLA", "torch_distributed"]),
        ({"torch_distributed": {"enabled": True, "nproc_per_node": 2}}, ["nproc_per_node", "processes_per_host"]),
        ({"parameter_server": {"enabled": True, "script_on": "chef"}}, ["'chef'", "Did you mean 'chief'?"]),
        ({"parameter_server": {"enabled": True, "script_on": "chief"}}, ["needs cluster_spec='coordinator'"]),
        ({"collective_all_reduce": {"enabled": True, "communication": "rings"}}, ["Did you mean 'ring'?"]),
        ({"collective_all_reduce": {"enabled": True, "bytes_per_pack": -1}}, ["bytes_per_pack", "-1"]),
        ({"collective_all_reduce": {"enabled": True, "processes_per_host": -1}}, ["processes_per_host", "-1"]),
        ({"collective_all_reduce": {"enabled": True, "processes_per_host": "two"}}, ["processes_per_host", "'two'"]),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_the_remedy(given_as: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse_distribution(given_as)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given_as", ["mpi", 3, ["mpi"], MPI])
def test_other_types_are_refused(given_as: Any) -> None:
    with pytest.raises(ConfigurationError):
        parse_distribution(given_as)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CollectiveAllReduce(allreduce_merge_scope=32), ["TensorFlow 1 only", "bytes_per_pack"]),
        (lambda: CollectiveAllReduce(gpu_indices="0,1"), ["TensorFlow 1 only", "processes_per_host"]),
        (lambda: ParameterServer(num_gpus_per_worker=2), ["TensorFlow 1 only", "processes_per_host"]),
        (lambda: Mirrored(cross_tower_ops=None), ["TensorFlow 1 only", "communication"]),
        (lambda: MPI(process_per_host=2), ["'process_per_host'", "Did you mean 'processes_per_host'?"]),
        (lambda: MPI(2), ["by name", "2"]),
        (lambda: MPI(processes_per_host=0), ["from 1 to 1,024"]),
        (lambda: parse_distribution({"collective_all_reduce": {"enabled": True, "num_gpus": 2}}), ["'num_gpus'"]),
        (lambda: parse_distribution({"mpi": {"enabled": True}, "mirrored": {"enabled": True}}), ["one strategy"]),
        (lambda: parse_distribution("mpi"), ["must be a strategy"]),
    ],
)  # fmt: skip
def test_refusals_are_configuration_errors(make: Any, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value
    assert ConfigurationError is estimators.ConfigurationError


def test_what_help_shows() -> None:
    assert list(inspect.signature(Mirrored).parameters) == ["devices", "communication"]
    assert pickle.loads(pickle.dumps(Mirrored(devices=2))) == Mirrored(devices=2)


def test_what_the_sdk_sends_is_read() -> None:
    sent = {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": 3,
        "sagemaker_mpi_custom_mpi_options": "-verbose",
        "sagemaker_parameter_server_enabled": False,
    }
    assert strategy_from_hyperparameters(sent) == MPI(processes_per_host=3, custom_mpi_options="-verbose")
    assert strategy_from_hyperparameters({"sagemaker_mpi_enabled": "true"}) == MPI()  # by hand
    assert strategy_from_hyperparameters({}) is None
    sagemakers = strategy_from_hyperparameters({"sagemaker_parameter_server_enabled": True})
    assert sagemakers == ParameterServer(cluster_spec="sagemaker")
    with pytest.raises(ValueError, match="several strategies"):
        strategy_from_hyperparameters({"sagemaker_mpi_enabled": True, "sagemaker_parameter_server_enabled": True})


def test_horovods_variables() -> None:
    assert MPI().horovod_environment() == {}
    strategy = MPI(fusion_threshold_mb=1.5, cycle_time_ms=2, hierarchical_allreduce=True, autotune=False)
    assert strategy.horovod_environment() == {
        "HOROVOD_FUSION_THRESHOLD": "1572864",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE": "0",
    }


def test_an_elastic_job_cannot_begin_with_fewer_than_it_needs() -> None:
    with pytest.raises(ConfigurationError, match="workers=1, the initial number, must be at least 2"):
        strategies.ElasticHorovod(workers=1, min_workers=2)
