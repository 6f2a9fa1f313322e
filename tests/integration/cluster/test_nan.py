"""Jobs whose loss is not a number."""

from __future__ import annotations

import clusters
import pytest

from estimators import TrainingJobError

PRINTED = """
print("Epoch 1/3")
print("8/8 - 1s - loss: 0.5")
print("Epoch 2/3")
print("8/8 - 1s - loss: nan")
print("8/8 - 1s - loss: nan")
"""
#: As container.distributed's report() tells it, without TensorFlow.
REPORTED = """
import aid, os, time
from container.contract import events
events.emit("metric", name="loss", value=float("nan"), step=7)
events.emit("metric", name="loss", value=float("nan"), step=8)
"""
REGEX = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]


def test_a_printed_one_is_warned_of(make: clusters.Make) -> None:
    job = make.run(PRINTED, metric_definitions=REGEX)
    text = "metric 'loss' is not a number (NaN) at epoch 2, step 8; rank 0 reported it."
    assert job.status == "Completed"
    assert list(job.result().warnings) == [text] and text in job.warnings
    assert text in job.describe()["Fleetfit"]["warnings"]
    assert f"warning: {text}" in clusters.all_text(job)
    assert job.metrics()["value"].tolist() == [0.5]


WAITS = "\nimport sys, time\nsys.stdout.flush()\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    "script",
    [PRINTED + WAITS, REPORTED + WAITS, PRINTED + "raise SystemExit(3)\n"],
    ids=["printed", "reported", "exits"],
)
def test_the_job_fails_where_that_was_asked_for(script: str, make: clusters.Make) -> None:
    """At once, while the script goes on, and without another attempt: the metric is the cause, whatever the end."""
    with pytest.raises(TrainingJobError, match=r"metric 'loss' is not a number \(NaN\) at") as raised:
        make.run(script, metric_definitions=REGEX, options={"on_nan": "fail"}, max_retry_attempts=3)
    job = raised.value.job
    assert job.status == "Failed" and "on_nan='fail'" in job.describe()["FailureReason"]
    assert job.result().attempts == 1
