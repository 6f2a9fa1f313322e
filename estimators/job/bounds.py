"""Define the largest sizes and times of a job that fleetfit accepts.

The limits are far above practical values. Without limits, a typing error such as ``processes_per_host=10**9`` would
exhaust the memory of the user's machine.
"""

from __future__ import annotations

from container.contract.names import shown

#: The largest number of hosts of a job.
MAX_HOSTS = 1024
#: The largest number of ranks of a job: eight ranks on each of :data:`MAX_HOSTS` hosts.
MAX_RANKS = 8192
#: The longest time that an option accepts, in seconds: ten years. Every system call accepts this time, and the sum of
#: this time and the current time is exact.
MAX_SECONDS = 315_360_000


def ranks_problem(hosts: int, ranks_per_host: int) -> str | None:
    """Return a text that explains why a job has too many hosts or ranks. Return None if the numbers are allowed."""
    if hosts > MAX_HOSTS:
        return f"instance_count={shown(hosts)} is too large; a job may have at most {MAX_HOSTS:,} hosts."
    if hosts * ranks_per_host > MAX_RANKS:
        return (
            f"{hosts:,} hosts × {ranks_per_host:,} processes are {hosts * ranks_per_host:,} ranks; a job may have "
            f"at most {MAX_RANKS:,}."
        )
    return None
