"""Functions as entry points, wherever hosts come from."""

from __future__ import annotations

from typing import Any

import clusters
import pytest


@pytest.mark.landing
def test_a_function_runs_on_every_host_and_its_value_comes_back(make: clusters.Make) -> None:
    class Found:
        """An own type, which no host has."""

        def __init__(self, ranks: list[int]) -> None:
            self.ranks = ranks

    factor = 3

    def train(share: float, epochs: int = 1) -> Any:
        from mpi4py import MPI

        ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)
        return Found(ranks), share * epochs * factor

    arguments: dict[str, Any] = {"entry_point": train, "source_dir": None}
    job = make("", hosts=2, processes=2, hyperparameters={"share": 0.5, "epochs": 4}, **arguments).fit(logs=False)
    found, product = job.value()
    assert isinstance(found, Found) and found.ranks == [0, 1, 2, 3]
    assert product == 6.0
