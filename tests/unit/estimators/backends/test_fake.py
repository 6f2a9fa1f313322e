"""The fake backend: real records, statuses, logs and handles of a cluster that never was."""

from __future__ import annotations

from typing import Any

import pytest

from container.contract import rules
from container.contract.failures import Cause, Failure
from estimators import TensorFlow
from estimators.job.errors import ConfigurationError
from estimators.testing import FakeOutcome

pytestmark = pytest.mark.usefixtures("home")


def estimator(outcome: FakeOutcome | None = None, **arguments: Any) -> TensorFlow:
    options = {} if outcome is None else {"run_options": outcome.run_options()}
    return TensorFlow(instance_type="local_fake", **options, **arguments)


def test_outcomes_travel_as_options() -> None:
    outcome = FakeOutcome(
        seconds=1.5, lines=["a", (1, "b")], metrics={"x": [1.0]}, failure=Failure(cause=Cause.PROCESS, message="m")
    )
    options = outcome.run_options(stop_grace=3.0)
    assert options.stop_grace == 3.0
    read = rules.from_dict(type(options), rules.to_dict(options))
    assert FakeOutcome.from_dict(read.backend_options) == outcome


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FakeOutcome(seconds=-1), "seconds"),
        (lambda: FakeOutcome(lines="abc"), "must be a list"),
        (lambda: FakeOutcome(lines=[3]), "must be a string or (rank, string), got 3"),
        (lambda: FakeOutcome(exit_code="3"), "exit_code"),
        (lambda: FakeOutcome.from_dict({"second": 3}), "Did you mean 'seconds'?"),
        (lambda: estimator(FakeOutcome(lines=[(1, "x")])).fit(), "there is no rank 1; number of ranks: 1"),
    ],
)
def test_mistakes_are_named(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value)
