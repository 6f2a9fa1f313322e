"""Every constructor with thousands of hostile values; see ``test_bounds.py``, which makes a hundred."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.unit.estimators.job.test_bounds import ARGUMENTS, VALUES, see_that_it_is_taken_or_refused

pytestmark = pytest.mark.soak


@seed(14)
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(place=st.sampled_from(ARGUMENTS), value=VALUES)
def test_no_value_gets_past_a_constructor_with_another_error(place: tuple[Any, str], value: Any) -> None:
    see_that_it_is_taken_or_refused(*place, value)
