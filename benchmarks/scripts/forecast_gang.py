"""A script on each host: trains in steps of a known time, saves now and then and on a notice, and goes on from there.

Its hosts share what is left of the records; the first one saves for all, so nobody imports anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_S = float(os.environ["FORECAST_STEP_S"])
STEPS, EVERY = int(os.environ["FORECAST_STEPS"]), int(os.environ["FORECAST_COMMIT_STEPS"])
first = os.environ["SM_CURRENT_HOST"] == "algo-1"
folder = Path(os.environ["FORECAST_FOLDER"])
saved = folder / "saved"
notes = folder / f"steps-{os.environ['SM_CURRENT_HOST']}-{os.getpid()}"


def save(step: int) -> None:
    """Keep how far it has come."""
    if first:
        part = saved.with_suffix(".part")
        part.write_text(json.dumps(step))
        part.replace(saved)


def told(number: int, frame: object) -> None:
    """Save, and end."""
    save(step)
    notes.open("a").write(f"{time.time_ns()} notice {step}\n")
    sys.exit(143)


step = json.loads(saved.read_text()) if saved.exists() else 0
if os.environ["FORECAST_SAVES"] == "1":
    signal.signal(signal.SIGTERM, told)
notes.open("a").write(f"{time.time_ns()} begin {step}\n")
while step < STEPS:
    time.sleep(STEP_S)
    step += 1
    if first:
        notes.open("a").write(f"{time.time_ns()} step {step}\n")
    if step % EVERY == 0:
        save(step)
