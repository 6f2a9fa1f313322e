"""Explain Slurm's states: why an allocation is pending, why an allocation has ended, and why a host was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: A host is given up this number of seconds before Slurm takes the node away.
_MARGIN_S = 1.0
#: Seconds of notice if Slurm does not report when it will take the node away.
_NOTICE_S = 30.0

_ENVIRONMENT = (
    "Install the same version of fleetfit on the nodes, for example in an environment that the nodes share. Name the "
    "interpreter of this environment with backend_options={'python': …}"
)

#: Words in srun's message about an allocation that has ended -> the allocation's state.
_SAID = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
#: Parts of the messages that our script on the node prints if the interpreter cannot be used.
_UNUSABLE = ("has no fleetfit", "there is no /")
#: Parts of lines that do not tell why srun has ended. The last one is printed on every cluster that cannot bind
#: processes to CPUs.
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
    """The reason why a host was lost.

    Attributes:
        reason: The reason as a text for the user.
        taken: Whether Slurm has taken the allocation away. Slurm may requeue the allocation.
        silent: Whether Slurm has given no reason for the loss.
    """

    reason: str
    taken: bool = False
    silent: bool = False


def why_pending(reason: str) -> str:
    """Return a description of Slurm's reason why a job is pending."""
    return _WAITS.get(reason, reason)


def why_over(state: str, reason: str) -> str:
    """Return why a job ended before it ran.

    Args:
        state: The job's final state.
        reason: Slurm's reason for the state.
    """
    text = _ENDS.get(state, state.lower() or "the reason is unknown")
    return f"{text} ({reason})" if reason and reason != "None" else text


def why_lost(said: Sequence[str], reason: str) -> Loss:
    """Return why a host was lost. The srun process that runs the host's agent may have printed the reason.

    Args:
        said: The last lines that srun has printed.
        reason: The reason why the connection to the agent has ended.
    """
    if (end := _end(said)) is not None:
        return Loss(_ENDS[end], taken=end != "CANCELLED")
    if missing := [line for line in said if any(words in line for words in _UNUSABLE)]:
        return Loss(f"{missing[0]}. {_ENVIRONMENT}")
    telling = [line for line in said if not any(words in line for words in _EMPTY)]
    return Loss(f"{reason} ({telling[-1]})" if telling else reason, silent=True)


def what_signalled(state: str, left: float | None, said: Sequence[str]) -> Loss | float:
    """Return what a signal to an agent means.

    Args:
        state: The allocation's state, or "" if Slurm has not answered.
        left: The seconds until Slurm kills the processes on the node, or None if the time is not known.
        said: The last lines that the agent's srun process has printed.

    Returns:
        The loss of the host if the allocation was cancelled or its node has failed. Otherwise, the number of seconds
        until Slurm takes the node away.
    """
    # srun prints "CANCELLED" also if Slurm only announces the end. If Slurm has not answered, assume an announcement.
    if state not in ("RUNNING", "") and _end(said) in ("CANCELLED", "NODE_FAIL"):
        return why_lost(said, "")
    return max(0.0, (left if left is not None else _NOTICE_S) - _MARGIN_S)


def _end(said: Sequence[str]) -> str | None:
    """Return the allocation's final state according to srun's lines. Return None if the lines contain no final
    state.
    """
    line = next((line for line in said if "CANCELLED AT" in line), None)
    return None if line is None else next((state for words, state in _SAID.items() if words in line), "CANCELLED")
