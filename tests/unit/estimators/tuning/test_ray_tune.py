"""Which estimators can be trials of Ray Tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import ElasticHorovod, RunOptions, TensorFlow
from estimators.job.errors import ConfigurationError
from estimators.tuning import ray_tune


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"instance_type": "local_process"}, "instance_type is 'local_process'. Set instance_type to 'ray'"),
        ({"distribution": ElasticHorovod(max_hosts=3)}, "an elastic job needs more"),
        ({"checkpoint_s3_uri": "s3://bucket/checkpoints"}, "Leave checkpoint_s3_uri= out"),
        ({"run_options": RunOptions(backend_options={"address": "10.0.0.1:6379"})}, "Leave address= out"),
        ({"run_options": RunOptions(backend_options={"labels": {"zone": "a"}})}, "Leave labels= out"),
    ],
)
def test_estimators_that_cannot_be_trials_are_refused(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    (tmp_path / "train.py").write_text("")
    given = {"instance_type": "ray", **arguments}
    estimator = TensorFlow(entry_point="train.py", source_dir=str(tmp_path), instance_count=2, **given)
    with pytest.raises(ConfigurationError, match=reason):
        ray_tune.trainable(estimator, metric="score")


def test_what_is_no_estimator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes an estimator, got a str"):
        ray_tune.trainable("train.py", metric="score")  # type: ignore[arg-type]
