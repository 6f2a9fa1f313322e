"""Functions as entry points, wherever hosts come from."""

from __future__ import annotations

from typing import Any

import clusters
import pytest

from estimators import TrainingJobError


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


def test_an_exception_comes_back_as_it_was_raised(make: clusters.Make) -> None:
    class NoDataError(Exception):
        """An own type, which no host has."""

    def train() -> None:
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            raise NoDataError("the second has none", 7)
        MPI.COMM_WORLD.recv(source=1)

    with pytest.raises(TrainingJobError, match=r"rank 1: .*NoDataError") as caught:
        make("", hosts=2, processes=1, entry_point=train, source_dir=None).fit(logs=False)
    raised = caught.value.__cause__
    assert isinstance(raised, NoDataError) and raised.args == ("the second has none", 7)
    assert 'raise NoDataError("the second has none", 7)' in str(raised.__cause__)
    with pytest.raises(NoDataError):
        caught.value.job.value()
