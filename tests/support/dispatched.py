"""What the tests of jobs with a dispatcher share."""

from __future__ import annotations

from typing import Any

#: It trains until it is told to end, or the test lets it.
STEPS = """
import os, signal, sys
import aid
signal.signal(signal.SIGTERM, lambda *_: (print("saving", flush=True), sys.exit(0)))
print(f"rank {aid.RANK} says hello", flush=True)
print("loss=0.5;", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w") as file:
    file.write("trained")
if folder := os.environ.get("SM_CHANNEL_TRAINING"):
    aid.report(data=open(os.path.join(folder, "part-1")).read())
aid.mark(f"ready-{aid.RANK}")
aid.wait_for("go")
"""
LOSS = [{"Name": "loss", "Regex": "loss=([0-9.]+);"}]


def follower(job: Any) -> int:
    """The process here that keeps the copy."""
    return int(job.describe()["Fleetfit"]["supervisor_pid"])
