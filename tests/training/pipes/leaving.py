"""Leaves while its stream stands still. ``leaving.py BASE WAY``

BASE is a host's tree, with a FIFO that has some records and is neither fed further nor closed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from container import distributed
from container.pipe_dataset import PipeModeDataset

os.environ["SM_INPUT_DIR"] = str(Path(sys.argv[1]) / "input")


def leave(*_: Any) -> None:
    sys.exit(3)


cluster = distributed.init()
present = iter(cluster.dataset(lambda: PipeModeDataset("train", "TFRecord"), global_batch_size=2, shuffle=None))
print(next(present).numpy().tolist(), flush=True)  # and the threads of TensorFlow's wait for more
if sys.argv[2] == "SIGTERM":
    signal.signal(signal.SIGTERM, leave)
    os.kill(os.getpid(), signal.SIGTERM)
raise RuntimeError("something went wrong")
