"""Instance types: every one that SageMaker trains on has slots, as far as they are known."""

from __future__ import annotations

import pytest

from estimators.job import instances, service_model

ENUM = service_model.load_shapes()["TrainingInstanceType"]["enum"]


@pytest.mark.parametrize("instance_type", ENUM)
def test_every_type_has_slots(instance_type: str) -> None:
    vcpus = instances.vcpus(instance_type)
    assert vcpus is not None
    assert 2 <= vcpus <= 384
    slots = instances.slots(instance_type)
    assert slots is None or 1 <= slots <= vcpus


@pytest.mark.parametrize(
    ("instance_type", "gpus", "slots"),
    [
        ("ml.p3.2xlarge", 1, 1),
        ("ml.p3.16xlarge", 8, 8),
        ("ml.p4d.24xlarge", 8, 8),
        ("ml.g5.12xlarge", 4, 4),
        ("ml.m5.xlarge", 0, 4),
        ("ml.m5.large", 0, 2),
        ("ml.c4.8xlarge", 0, 36),
        ("ml.c5.18xlarge", 0, 72),
        ("ml.g99.xlarge", 0, None),
        ("nonsense", 0, None),
    ],
)
def test_slots_are_gpus_or_vcpus(instance_type: str, gpus: int, slots: int | None) -> None:
    assert instances.gpus(instance_type) == gpus
    assert instances.slots(instance_type) == slots


@pytest.mark.parametrize("instance_type", [name for name in instances.offered() if instances.describe(name).on_demand])  # type: ignore[union-attr]
def test_every_price_says_where_it_is_from(instance_type: str) -> None:
    source = instances.price_source(instance_type)
    assert source.startswith("SageMaker on demand, us-east-1: ")
    assert ("commit" in source) is not ("not verified" in source)
    assert ("commit" in source) or not instance_type.startswith(("ml.p3", "ml.g4dn"))
