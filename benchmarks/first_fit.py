"""``python -m benchmarks.first_fit HOSTS PROCESSES``: the first ``fit()`` of a process, as a script's user has it.

Prints one JSON object on its last line: ``fit`` and ``end`` in seconds, as :func:`benchmarks.launch.timed_fit` says.
"""

from __future__ import annotations

import json
import sys

from benchmarks.launch import timed_fit
from estimators import MPI, TensorFlow  # noqa: F401 - what a user's script imports before it can call fit()

if __name__ == "__main__":
    print(json.dumps(timed_fit(int(sys.argv[1]), int(sys.argv[2]))))
