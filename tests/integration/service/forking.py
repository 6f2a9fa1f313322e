"""Runs scripts at once in processes of their own, after importing the SDK a single time: that is most of their time.

::

    python forking.py OUT_DIR script.py …     each script's output goes to OUT_DIR/script.out
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
import sagemaker.tensorflow  # noqa: F401


def main(out: Path, scripts: list[Path]) -> int:
    """Run them; returns how many failed."""
    pids = {}
    for script in scripts:
        pid = os.fork()
        if pid == 0:
            output = os.open(out / f"{script.stem}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = 1
            try:
                runpy.run_path(str(script), run_name="__main__")
                status = 0
            except BaseException:  # noqa: BLE001 - as the interpreter would
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        pids[pid] = script
    failed = 0
    for _ in range(len(pids)):
        pid, status = os.wait()
        failed += status != 0
        print(f"{pids[pid].name}: {os.waitstatus_to_exitcode(status)}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
