"""simulate() shares its runs among processes: who simulates which changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.client.simulation.model import SimulatedJob, Timings
from estimators.client.simulation.runs import Question, outcomes
from estimators.job.failure_policy import FailurePolicy
from estimators.job.spot_market import SpotMarket
from estimators.supervisor.elastic.policy import Limits

JOB = SimulatedJob(
    records=2e5, rates=(100.0, 200.0, 300.0, 400.0), workers_per_host=1, least=1, most=4, every_s=10.0, on_demand=0,
    timings=Timings(),
)  # fmt: skip
MARKET = SpotMarket(rate=100, notice_s=0, return_after_s=5, seed=3)


@pytest.mark.parametrize("rules", [Limits(first=4, least=1, most=4), FailurePolicy()])
def test_other_processes_come_to_the_same(
    rules: Limits | FailurePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(job=JOB, market=MARKET, rules=rules, limit_s=1e5)
    alone = outcomes(question, 14, processes=1)
    assert len({run.seconds for run in alone}) == 14
    # A folder of the same name where the user stands is not taken for the package.
    (tmp_path / "estimators").mkdir()
    (tmp_path / "estimators" / "__init__.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    assert outcomes(question, 14, processes=3) == alone
    assert outcomes(question, 11, processes=3) == alone[:11] and outcomes(question, 2, processes=3) == alone[:2]
