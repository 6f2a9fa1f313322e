"""Find in a rank's output which of PyTorch's collective operations timed out, and after what time. Pure."""

from __future__ import annotations

import re

HINT = (
    "another rank makes other calls, or no calls. To see where each rank waits, set hang_timeout=… of the estimator. "
    "To give slow ranks more time, set init_process_group(timeout=…)."
)

#: Message of PyTorch's watchdog over NCCL, ``ProcessGroupNCCL.cpp``.
_NCCL = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<name>\w+),"
    r"[^)]*Timeout\(ms\)=(?P<ms>\d+)\)"
)
#: Message of Gloo's buffers. It does not name the collective operation, but Python's frames do.
_GLOO = re.compile(r"gloo/transport/.*Timed out waiting (?P<ms>\d+)ms for (?:send|recv) operation to complete")
#: Message of the barrier that names the missing ranks, ``ProcessGroupGloo.cpp``.
_MONITORED = re.compile(r"Ranks? (?P<ranks>\d+(?:, *\d+)*) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
_FRAME = re.compile(r'^  File ".*/torch/distributed/distributed_c10d\.py", line \d+, in (?P<name>\w+)$', re.MULTILINE)


def describe(text: str, traceback: str | None) -> str | None:
    """Return a phrase about a rank's collective operation that timed out: its name, and the time limit or the missing
    ranks. Return None if no operation timed out.

    Args:
        text: The end of the rank's output.
        traceback: The traceback of the exception that ended the rank. None if no exception ended the rank.
    """
    for said in (traceback or "", text):
        if (found := _NCCL.search(said)) is not None:  # the first operation: later operations waited for the first
            return f"NCCL's collective {found['number']}, {found['name']}, timed out after {_seconds(found['ms'])}"
    if traceback is None:
        return None
    if (found := _MONITORED.search(traceback)) is not None and "Connection closed" not in traceback:
        ranks = found["ranks"]
        return f"monitored_barrier timed out: {'ranks' if ',' in ranks else 'rank'} {ranks} did not reach it"
    if (found := _GLOO.search(traceback)) is not None:
        frame = _FRAME.search(traceback)
        name = frame["name"] if frame is not None else "a collective"
        return f"{name} timed out after {_seconds(found['ms'])}: another rank took no part in it"
    return None


def _seconds(milliseconds: str) -> str:
    return f"{int(milliseconds) / 1000:g} s"
