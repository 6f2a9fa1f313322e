"""When a host that says nothing is given up."""

from __future__ import annotations

import pytest

from estimators.supervisor.streams import LEAST_SILENCE, longest_silence


@pytest.mark.parametrize(
    ("hang_timeout", "start_timeout", "seconds"),
    [
        (None, 60.0, 60.0),
        (None, 1.0, LEAST_SILENCE),
        (30.0, 60.0, 30.0),
        (600.0, 60.0, 600.0),
        (3.0, 60.0, LEAST_SILENCE),  # signs of life come every five seconds
    ],
)
def test_a_host_may_be_silent_for_as_long_as_a_job_may(
    hang_timeout: float | None, start_timeout: float, seconds: float
) -> None:
    assert longest_silence(hang_timeout, start_timeout) == seconds


def test_a_silent_host_of_an_elastic_job_is_given_up_before_the_job_is() -> None:
    assert longest_silence(600.0, 60.0, elastic=True) == 60.0
    assert longest_silence(30.0, 60.0, elastic=True) == 30.0
    assert longest_silence(None, 60.0, elastic=True) == 60.0
