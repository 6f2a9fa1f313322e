"""What a job may ask of Ray, and what is said of what is lacking."""

from __future__ import annotations

import documents
import pytest
import yaml

from estimators.backends.ray import driver, shortage
from estimators.backends.ray.options import RayOptions
from estimators.job.errors import ConfigurationError


def test_without_options_each_process_has_a_core_on_a_cluster_that_ray_finds() -> None:
    made = RayOptions.of({})
    assert made.address is None and made.strategy is None
    assert made.bundle(4) == {"CPU": 4.0}


def test_what_a_host_gets_is_what_was_asked_for() -> None:
    made = RayOptions.of(
        {
            "address": "ray://head:10001", "strategy": "SPREAD", "accelerator_type": "A100", "silence": 3,
            "resources_per_host": {"CPU": 8, "GPU": 0.5, "special": 2}, "labels": {"ray.io/market-type": "spot"},
            "placement_group": "ab" * 18, "runtime_env": {"pip": ["pandas"]}, "python": "/opt/python",
            "caller_address": "10.0.0.1",
        }
    )  # fmt: skip
    assert made.bundle(4) == {"CPU": 8.0, "GPU": 0.5, "special": 2.0, "accelerator_type:A100": 0.001}
    assert made.silence == 3.0 and made.labels == {"ray.io/market-type": "spot"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"adress": "auto"}, "Did you mean 'address'"),
        ({"address": ""}, "not a single line of text"),
        ({"strategy": "STRICT_SPRAED"}, "Did you mean 'STRICT_SPREAD'"),
        ({"resources_per_host": {}}, "must be a dict of resources and amounts"),
        ({"resources_per_host": {"CPU": 0}}, "asks for nothing"),
        ({"resources_per_host": {"CPU": -1}}, "must have an amount"),
        ({"resources_per_host": {"CPU": True}}, "must have an amount"),
        ({"resources_per_host": {"CPU": float("nan")}}, "must have an amount"),
        ({"resources_per_host": {"GPU": 1.5}}, "'GPU' above 1 must be whole"),
        ({"resources_per_host": {"object_store_memory": 1}}, "Leave it out"),
        ({"labels": {"a": 1}}, "labels and values"),
        ({"placement_group": "mine"}, "the id of a placement group"),
        ({"runtime_env": {"pip": object()}}, "plain values"),
        ({"runtime_env": "env.yaml"}, "plain values"),
        ({"python": "python3"}, "absolute path"),
        ({"caller_address": "head"}, "IPv4"),
        ({"silence": 0}, "seconds above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RayOptions.of(given)


def test_errors_of_rays_are_one_line() -> None:
    remote = 'ray::HostActor.start() (pid=1)\nTraceback (most recent call last):\n  File "x"\nOSError: no room'
    assert shortage.line_of(RuntimeError(remote)) == "OSError: no room"
    died = RuntimeError("The actor died:\n\tits node is gone.\n")
    assert shortage.line_of(died) == "The actor died: its node is gone."
    assert shortage.line_of(RuntimeError()) == "RuntimeError"
    assert len(shortage.line_of(RuntimeError("word " * 1000))) <= 500


@pytest.mark.parametrize(
    ("address", "reason"), [("head", "an address is"), (":6379", "an address is"), ("ray://", "an ad")]
)
def test_what_is_no_address_is_refused(address: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        driver._look_for(address)


def test_the_cluster_file_in_the_document_is_one_that_ray_takes() -> None:
    """What `ray up` does before it asks the cloud for anything."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    [block] = [one for one in documents.blocks(documents.ROOT / "docs" / "ray.md") if one.language == "yaml"]
    config = prepare_config(yaml.safe_load(block.text))
    validate_config(config)
    assert config["available_node_types"]["worker"]["max_workers"] == config["max_workers"] == 8
