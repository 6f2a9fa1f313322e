"""What Slurm says, in words: why an allocation waits, why it has ended, and why a host is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: How long before Slurm takes a node its host is given up, in seconds.
_MARGIN_S = 1.0
#: A notice whose length Slurm does not say, in seconds.
_NOTICE_S = 30.0

_ENVIRONMENT = (
    "Install the same version of fleetfit on the nodes, for example in an environment that the nodes share. Name the "
    "interpreter of this environment with backend_options={'python': …}"
)

#: What srun says of an allocation that has ended, and the state.
_SAID = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
#: What our own words on the node say of an interpreter that will not do.
_UNUSABLE = ("has no fleetfit", "there is no /")
#: Lines of srun's that say that it has ended, and not why; the last one says nothing on every cluster that cannot bind
#: to CPUs.
_EMPTY = (
    *("Job step aborted", "Exited with exit code", ": Killed", ": Terminated", "Timed out waiting for job step"),
    "lacks support for cpu binding",
)

#: Why an allocation has ended, by its state.
_ENDS = {
    "TIMEOUT": "the allocation has reached its time limit; request more with backend_options={'time': …}",
    "PREEMPTED": "Slurm has given its node to another job",
    "CANCELLED": "the allocation was cancelled (scancel)",
    "NODE_FAIL": "its node has failed",
    "OUT_OF_MEMORY": "it used more memory than requested; request more with backend_options={'mem': …}",
    "DEADLINE": "the allocation's deadline has passed",
    "BOOT_FAIL": "its node could not be booted",
}

#: Why an allocation is pending, by Slurm's reason.
_WAITS = {
    "None": "it was just submitted",
    "Resources": "it waits for nodes to become free (Resources)",
    "Priority": "jobs of higher priority are ahead of it (Priority)",
    "PartitionDown": "its partition is down (PartitionDown)",
    "PartitionInactive": "its partition accepts no jobs (PartitionInactive)",
    "PartitionTimeLimit": "it asks for more time than its partition allows (PartitionTimeLimit)",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows (PartitionNodeLimit)",
    "QOSMaxNodePerUserLimit": "you already have as many nodes as your QOS allows (QOSMaxNodePerUserLimit)",
    "JobHeldUser": "it is held; `scontrol release` releases it (JobHeldUser)",
    "JobHeldAdmin": "an administrator holds it (JobHeldAdmin)",
    "BeginTime": "its start time has not come yet (BeginTime)",
    "ReqNodeNotAvail": "nodes that it needs are not available (ReqNodeNotAvail)",
}


class Loss(NamedTuple):
    """Why a host is lost.

    Attributes:
        reason: In words.
        taken: Whether Slurm has taken the allocation, which may come back into the queue.
        silent: Whether Slurm has not said a word of it.
    """

    reason: str
    taken: bool = False
    silent: bool = False


def why_pending(reason: str) -> str:
    """Return Slurm's reason for which a job is pending in words."""
    return _WAITS.get(reason, reason)


def why_over(state: str, reason: str) -> str:
    """Return why a job has ended before it ran, from its state and Slurm's reason."""
    text = _ENDS.get(state, state.lower() or "the reason is unknown")
    return f"{text} ({reason})" if reason and reason != "None" else text


def why_lost(said: Sequence[str], reason: str) -> Loss:
    """Return why the host is lost of whose agent's srun these lines are.

    Args:
        said: The last lines of srun's.
        reason: Why the connection has ended, as far as the connection knows.
    """
    if (end := _end(said)) is not None:
        return Loss(_ENDS[end], taken=end != "CANCELLED")
    if missing := [line for line in said if any(words in line for words in _UNUSABLE)]:
        return Loss(f"{missing[0]}. {_ENVIRONMENT}")
    telling = [line for line in said if not any(words in line for words in _EMPTY)]
    return Loss(f"{reason} ({telling[-1]})" if telling else reason, silent=True)


def what_signalled(state: str, left: float | None, said: Sequence[str]) -> Loss | float:
    """Return what a signal to an agent means: the loss of its host, or in how many seconds Slurm takes the node.

    Args:
        state: The allocation's state; "" if Slurm has not answered.
        left: In how many seconds Slurm kills what runs there; None if that is not known.
        said: The last lines of the agent's srun.
    """
    # srun says "CANCELLED" of what is only announced, too, so without an answer it counts as an announcement.
    if state not in ("RUNNING", "") and _end(said) in ("CANCELLED", "NODE_FAIL"):
        return why_lost(said, "")
    return max(0.0, (left if left is not None else _NOTICE_S) - _MARGIN_S)


def _end(said: Sequence[str]) -> str | None:
    """Return the state in which srun has said that the allocation ended; None if it has not."""
    line = next((line for line in said if "CANCELLED AT" in line), None)
    return None if line is None else next((state for words, state in _SAID.items() if words in line), "CANCELLED")
