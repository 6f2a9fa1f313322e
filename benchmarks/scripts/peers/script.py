"""What every launcher starts twice: it ends, or one raises while the other sleeps, or both sleep."""

from __future__ import annotations

import os
import time
from pathlib import Path


def work(rank: int) -> None:
    """Do what ``$PEERS_WHAT`` says."""
    folder, what = Path(os.environ["PEERS_FOLDER"]), os.environ["PEERS_WHAT"]
    if what == "launch":
        return
    part = folder / f".pid-{rank}"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"pid-{rank}")
    if what == "failure" and rank == 1:
        while not (folder / "pid-0").exists():
            time.sleep(0.01)
        (folder / "raised").write_text(str(time.time()))
        raise ValueError("boom")
    time.sleep(600)


if __name__ == "__main__":
    work(int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0))
