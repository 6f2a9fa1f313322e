"""What a job that waits for a Ray cluster's nodes says that is lacking."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.backends.ray import shortage

NODES: list[dict[str, Any]] = [
    {"NodeID": "a", "Resources": {"CPU": 8.0}, "Labels": {"zone": "1"}},
    {"NodeID": "b", "Resources": {"CPU": 4.0, "GPU": 1.0}, "Labels": {}},
]


@pytest.mark.parametrize(
    ("changes", "count", "free", "said"),
    [
        ({"group": "ab12"}, 1, {}, "placement group ab12 is not ready yet"),
        (
            {"labels": {"zone": "2"}}, 1, {},
            "Ray has no node yet with the labels {'zone': '2'}; the job waits for {CPU: 4}",
        ),
        (
            {"bundle": {"GPU": 2}}, 3, {},
            "Ray has no node yet with GPU 2 (the largest node has 1); the job waits for 3 × {GPU: 2} (STRICT_SPREAD)",
        ),
        (
            {}, 3, {},
            "Ray has 2 of 3 nodes for 3 × {CPU: 4} (STRICT_SPREAD); the job waits until more nodes join the cluster",
        ),
        (
            {}, 2, {"a": {"CPU": 8.0}, "b": {"CPU": 1.0}},
            "the job waits for 2 × {CPU: 4} (STRICT_SPREAD): 1 of 2 nodes of that size have enough free resources",
        ),
        ({"labels": {"zone": "!2"}}, 1, None, "the job waits for {CPU: 4}; available now: CPU: 9, GPU: 1"),
    ],
)  # fmt: skip
def test_what_is_lacking_is_named(changes: dict[str, Any], count: int, free: shortage.Free | None, said: str) -> None:
    asked = {"bundle": {"CPU": 4}, "strategy": "STRICT_SPREAD", "labels": {}, "apart": True, "group": None, **changes}
    available = {"CPU": 9.0, "GPU": 1.0, "node:10.0.0.1": 1.0, "CPU_group_0_ab": 4.0}
    found = shortage.reason(asked, count, NODES, taken=0, free=free, available=available)
    assert found == said


@pytest.mark.parametrize(
    ("python", "runtime_env", "splits"),
    [
        ("/opt/env/bin/python", {"env_vars": {}}, False),
        ("/opt/my env/bin/python", {"env_vars": {}}, True),
        ("/opt/it's/bin/python", {}, True),
        ("/opt/my env/bin/python", {"pip": ["pandas"]}, False),  # Ray makes another one, in its own folder
    ],
)
def test_a_python_that_ray_cannot_start(python: str, runtime_env: dict[str, Any], splits: bool) -> None:
    assert (python in (shortage.split_python(python, runtime_env) or "")) is splits
