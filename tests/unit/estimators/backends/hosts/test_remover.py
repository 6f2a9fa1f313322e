"""How soon a remover that was killed is replaced."""

from __future__ import annotations

import pytest

from estimators.backends.hosts.remover import pause


@pytest.mark.parametrize(("ran", "seconds"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (3600.0, 0.0)])
def test_a_process_that_ran_is_replaced_at_once_and_one_that_cannot_run_once_a_second(
    ran: float, seconds: float
) -> None:
    assert pause(ran) == seconds
