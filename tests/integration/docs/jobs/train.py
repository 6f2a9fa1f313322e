"""A loss that falls, and waits to be stopped once it is low."""

import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
for step in range(8):
    print(f"loss: {1 / (step + 1):.4f}", flush=True)
    time.sleep(0.05)
