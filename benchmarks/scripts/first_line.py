"""Says when it began, by the clock that all hosts of a benchmark share."""

import sys
import time

print(f"first line {time.time():.6f}", flush=True)
if len(sys.argv) > 1:
    time.sleep(float(sys.argv[1]))
