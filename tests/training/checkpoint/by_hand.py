"""``by_hand.py FOLDER``: a loop without Keras, as docs/in-the-script.md has it, in the cluster that TF_CONFIG names.

Prints where it went on, and what it has then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

from container import distributed
from container.checkpoint import Checkpointer

STEPS = 3

cluster = distributed.init()
# Each rank has a folder of its own, as on hosts that share no disk; only rank 0's is used.
checkpointer = Checkpointer(Path(sys.argv[1]) / str(cluster.rank))
state: dict[str, Any] = {"w": np.full(4, float(cluster.rank))}
restored = checkpointer.restore(state)
first = restored.step if restored is not None else 0
for step in range(first + 1, first + STEPS + 1):
    state["w"] += 10
    checkpointer.save(state, step=step)
checkpointer.close()
cluster.barrier()
# Whoever leaves at once may take the last message to the other along.
mine, others = (Path(sys.argv[1]) / f"{first}-{rank}" for rank in (cluster.rank, 1 - cluster.rank))
mine.touch()
until = time.monotonic() + 60
while not others.exists():
    assert time.monotonic() < until, "the other rank did not come so far"
    time.sleep(0.01)
print(json.dumps({"first": first, "w": state["w"].tolist()}), flush=True)
os._exit(0)
