"""Times the steps of a training from the inside; beside the scripts, so that each way of launching them has it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable


def timed(block: Callable[[int], None], blocks: int) -> list[float]:
    """Run blocks of steps, one after the other.

    Args:
        block: Runs the block of that number.
        blocks: How many.

    Returns:
        The seconds of each.
    """
    durations = []
    begin = time.perf_counter()
    for number in range(blocks):
        block(number)
        end = time.perf_counter()
        durations.append(end - begin)
        begin = end
    return durations


def write(path: str, durations: list[float], steps_per_block: int = 1) -> None:
    """Write what ``benchmarks/steps.py`` reads.

    Args:
        path: The file.
        durations: The seconds of each block.
        steps_per_block: How many steps a block has.
    """
    seconds = sum(durations)
    result = {
        "steps_per_second": len(durations) * steps_per_block / seconds,
        # Bursts of other load fall on few steps, and move this less than they do the mean.
        "median_step_s": statistics.median(durations) / steps_per_block,
        "seconds": seconds,
    }
    with open(path, "w") as file:
        json.dump(result, file)
