"""Which processes are ranks: the numbering that readers use is the one that the launchers plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import MPI, CollectiveAllReduce, ParameterServer, TensorFlow
from estimators.records import ranks
from estimators.records.record import JobRecord

STRATEGIES = [
    None,
    MPI(processes_per_host=2),
    CollectiveAllReduce(processes_per_host=2),
    ParameterServer(),
    ParameterServer(script_on="chief"),
    ParameterServer(cluster_spec="sagemaker"),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("hosts", [1, 3])
def test_it_is_as_planned(strategy: Any, hosts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    estimator = TensorFlow(
        entry_point=str(tmp_path / "train.py"),
        instance_count=hosts,
        instance_type="local_process",
        distribution=strategy,
        model_dir=False,
    )
    planned = estimator.plan(job_name="job")
    rank_of = ranks.numbering(planned.spec)
    assert [rank_of(process.host, process.name) for process in planned.processes] == [
        process.rank for process in planned.processes
    ]
    assert rank_of("algo-1", None) is None


def test_a_record_that_cannot_be_read_is_numbered_by_names(tmp_path: Path) -> None:
    rank_of = ranks.of_record(JobRecord(tmp_path / "nothing"))
    assert (rank_of("algo-1", "rank 3"), rank_of("algo-1", "chief"), rank_of("algo-1", None)) == (3, None, None)
