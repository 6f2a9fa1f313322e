"""The table of backends: names, and instance types that only begin with one."""

from __future__ import annotations

import pytest

from estimators.job import fleets


@pytest.mark.parametrize(
    ("instance_type", "name"),
    [
        ("ml.p3.2xlarge", "ml"),
        ("ml.", "ml"),
        ("local", "local"),
        ("local_process", "local_process"),
        ("local.gpu", "local.gpu"),  # its name is its whole type
        ("ml", "ml"),
        ("", ""),
        ("p3.2xlarge", "p3.2xlarge"),
    ],
)
def test_only_typed_backends_take_types_that_go_on_with_a_dot(instance_type: str, name: str) -> None:
    assert fleets.fleet_name(instance_type) == name


def test_typed_backends_are_no_whole_type() -> None:
    typed = {name for name, fleet in fleets.FLEETS.items() if fleet.typed}
    assert "ml" in typed
    assert typed.isdisjoint(fleets.OWN_TYPES)
    assert typed | set(fleets.OWN_TYPES) == set(fleets.FLEETS)
