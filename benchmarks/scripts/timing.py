"""Times the steps of a training from the inside; beside the scripts, so that each way of launching them has it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

#: Long enough to have in it whatever comes at least once a second: a heartbeat, a report, a flush.
WINDOW_S = 1.0


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


def windows(durations: list[float], seconds: float = WINDOW_S) -> list[float]:
    """Cut a run into windows of whole blocks.

    Args:
        durations: The seconds of each block.
        seconds: How long a window is at least. What is left over at the end is no window, unless it is the only one.

    Returns:
        The blocks per second of each window.
    """
    rates, blocks, passed = [], 0, 0.0
    for duration in durations:
        blocks, passed = blocks + 1, passed + duration
        if passed >= seconds:
            rates.append(blocks / passed)
            blocks, passed = 0, 0.0
    return rates or [blocks / passed]


def write(path: str, durations: list[float], steps_per_block: int = 1) -> None:
    """Write what ``benchmarks/steps.py`` reads.

    Args:
        path: The file.
        durations: The seconds of each block.
        steps_per_block: How many steps a block has.
    """
    result = {
        # A burst of other load falls on few windows, and on still fewer of all steps.
        "steps_per_second": statistics.median(windows(durations)) * steps_per_block,
        "median_step_s": statistics.median(durations) / steps_per_block,
        "seconds": sum(durations),
    }
    with open(path, "w") as file:
        json.dump(result, file)
