"""Which process runs which tests, and in which order."""

from __future__ import annotations

import pytest
import turns

TRAINS = "tests/training/cluster/test_torch.py::test_a"
RAY = "tests/integration/cluster/test_ray.py::test_a"
RAY_TRAINS = "tests/training/cluster/test_elastic_ray.py::test_a"
SLURM = "tests/integration/cluster/test_ranks.py::test_a[slurm]"
WAITS = "tests/training/cluster/test_elastic.py::test_a"
LONG = "tests/integration/docs/test_documents.py::test_a[README]"
PLAIN = "tests/integration/cluster/test_ranks.py::test_a[process]"
UNIT = "tests/unit/test_turns.py::test_a"


def test_what_takes_both_cores_begins_and_is_the_last_of_its_engine() -> None:
    found = [UNIT, PLAIN, RAY_TRAINS, RAY, WAITS, LONG, TRAINS]
    assert sorted(found, key=turns.order) == [TRAINS, RAY, WAITS, LONG, RAY_TRAINS, PLAIN, UNIT]
    assert turns.is_large(TRAINS) and not turns.is_large(WAITS) and turns.group(WAITS) == WAITS.partition("::")[0]
    assert turns.group(RAY) == turns.group(RAY_TRAINS) == "ray" and turns.group(SLURM) == "machines"
    assert turns.group(TRAINS, 1) == "large 0" and turns.group(PLAIN) == "tests/integration/cluster/test_ranks.py"


def test_an_engine_ends_with_the_last_of_its_tests_where_one_process_has_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert turns.ends_engine(RAY_TRAINS, PLAIN) and turns.ends_engine(SLURM, RAY)
    assert not turns.ends_engine(RAY, RAY_TRAINS) and not turns.ends_engine(PLAIN, UNIT)
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    assert not turns.ends_engine(RAY_TRAINS, PLAIN)
