"""How fast the steps of each epoch of a training are, for whoever lets it make them; for any framework.

The first epoch of each training warms up. The others are timed from the end of one to the end of the next, so that what
lies between two epochs counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any


def parse_arguments() -> argparse.Namespace:
    """Return what a training was told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True, help="of an epoch")
    parser.add_argument("--epochs", type=int, required=True, help="of a training")
    parser.add_argument("--commit-every", default="0", help="of each training in turn; 0 is the script's own interval")
    parser.add_argument("--held", type=int, default=0, help="whether an epoch waits until it is let")
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_known_args()[0]


class EpochTimer:
    """Writes ``epoch-N.json`` when an epoch has ended: empty for the first one of a training.

    Args:
        folder: Where to.
        steps: Steps of an epoch.
        chief: Whether this is rank 0, which alone writes.
        held: Whether the next epoch waits for the file ``go-N``.
    """

    def __init__(self, folder: Path, *, steps: int, chief: bool, held: bool) -> None:
        self._folder = folder
        self._steps = steps
        self._chief = chief
        self._held = held
        self._number = 0
        self._ends: list[float] = []
        self._commits: list[float] = []
        self._began: float | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self._ends.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell of the epoch, and let the next one begin."""
        if self._chief:
            path = self._folder / f"epoch-{self._number}.json"
            path.with_suffix(".new").write_text(json.dumps(self._numbers(time.perf_counter()) if epoch else {}))
            path.with_suffix(".new").rename(path)
            while self._held and not (self._folder / f"go-{self._number}").exists():
                time.sleep(0.002)
        self._number += 1
        self._ends.clear()
        self._commits.clear()
        self._began = time.perf_counter()

    def _numbers(self, now: float) -> dict[str, float]:
        assert self._began is not None
        return {
            "steps_per_second": self._steps / (now - self._began),
            "median_step_s": statistics.median(b - a for a, b in itertools.pairwise(self._ends)),
            "commit_share": sum(self._commits) / (now - self._began),
            "commits": len(self._commits),
        }

    def timed(self, save: Any) -> Any:
        """``save`` of a state, timed."""

        def timed(state: Any) -> None:
            began = time.perf_counter()
            save(state)
            self._commits.append(time.perf_counter() - began)

        return timed
