"""The most that an argument may be: far above what anybody has, far below what would take the caller's memory.

Pure; without them a slip of the keyboard (``processes_per_host=10**9``) would be carried out to the end.
"""

from __future__ import annotations

from container.contract.names import shown

#: Hosts of a job.
MAX_HOSTS = 1024
#: Ranks of a job: eight for each of as many hosts.
MAX_RANKS = 8192
#: Ten years in seconds. Sums with the time of day stay exact, and every system call takes them.
MAX_SECONDS = 315_360_000


def ranks_problem(hosts: int, ranks_per_host: int) -> str | None:
    """Return the problem with a job's size, or None."""
    if hosts > MAX_HOSTS:
        return f"instance_count={shown(hosts)} is too large; a job may have at most {MAX_HOSTS:,} hosts."
    if hosts * ranks_per_host > MAX_RANKS:
        return (
            f"{hosts:,} hosts × {ranks_per_host:,} processes are {hosts * ranks_per_host:,} ranks; a job may have "
            f"at most {MAX_RANKS:,}."
        )
    return None
