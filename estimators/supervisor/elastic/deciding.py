"""Decide the next step of an elastic training from its hosts and workers.

The functions have no side effects. The time is an argument.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping, Sequence

from container.contract.elastic import split_worker
from container.contract.failures import Cause, Failure
from container.contract.frozen import dataclass
from container.contract.membership import natural_key
from estimators.supervisor.elastic.course import State
from estimators.supervisor.elastic.members import ElasticHost, HostState, Roster, Worker, WorkerState
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import Limits, next_offer

#: The numbers of ended hosts after which a job fails if no host has ever started (:func:`is_hopeless`). The first
#: number counts only ends with a known reason. It applies while other hosts still wait for a place (:mod:`.places`). If
#: no host waits, one such end suffices. The second number counts all ends.
_EXPLAINED_ENDS, _ENDS = 3, 10


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The workers that the cluster should have.

    Attributes:
        workers: The workers to send to the driver. None to send nothing now.
        again_at: The time at which to decide again, if a limit delays a change. None if no change is delayed.
        awaited: The number of ready workers and the number of starting workers, while the job has too few workers to
            begin. Otherwise None.
        shortage: Whether the training has begun but has fewer workers than it needs.
    """

    workers: tuple[str, ...] | None = None
    again_at: float | None = None
    awaited: tuple[int, int] | None = None
    shortage: bool = False


def decide(
    state: State,
    roster: Roster,
    limits: Limits,
    offered: Sequence[str],
    places: Places | None,
    *,
    now: float,
    grown_at: float | None,
    all_there: bool = True,
) -> Decision:
    """Decide which workers the cluster should have.

    Args:
        state: The state of the training.
        roster: The hosts and workers.
        limits: The sizes of the cluster, and how much may change at once.
        offered: The workers that were last sent to the driver.
        places: The places that a source has named. None without a source.
        now: The current time, in seconds on a monotonic clock.
        grown_at: When the cluster last grew, on the same clock as ``now``. None if the cluster has never grown.
        all_there: Whether to wait for workers that are still starting.

    Returns:
        The decision.
    """
    alive = roster.alive
    if not state.has_begun:
        if places is not None and not places.known:
            return Decision(awaited=(0, 0) if places.answered else None)
        coming = [
            host
            for host in roster.present_hosts
            if host.state is HostState.STARTING and not host.spare and not stands_by(host, places)
        ]
        if all_there and (coming or roster.preparing):
            return Decision(awaited=(len(roster.there), roster.preparing + sum(host.slots for host in coming)))
        # sorted by name, so that rank 0 is on algo-1 even if another worker was ready first
        alive.sort(key=lambda worker: natural_key(worker.name))
    current = [name for name in offered if roster.workers[name].state is not WorkerState.ENDED]
    if state is State.SETTLING and len(current) >= limits.least:
        return Decision()
    ready = [(worker.name, worker.host) for worker in alive]
    offer = next_offer(current, ready, roster.leaving, limits, now=now, grown_at=grown_at)
    if state.has_begun and len(offer.workers) < limits.least:
        # Workers on hosts with a notice train until their host is taken away. They gain nothing if they wait for more
        # workers.
        leaving = [name for name in roster.leaving if not roster.hosts[name].noticed]
        offer = next_offer(current, ready, leaving, limits, now=now, grown_at=grown_at)
    if not state.has_begun and len(offer.workers) < limits.first:
        return Decision(awaited=(len(offer.workers), 0))
    short = state.has_begun and len(offer.workers) < limits.least
    return Decision(
        workers=offer.workers if offer.workers != tuple(offered) else None,
        again_at=offer.again_at,
        shortage=short and (roster.restarts or roster.members_left > 0),
    )


def stands_by(host: ElasticHost, places: Places | None) -> bool:
    """Return whether a host is still waiting for a place (:mod:`.places`)."""
    return places is not None and places.awaits(host.name)


class WorkerEnd(enum.Enum):
    """The reason why a worker ended."""

    #: A member's script has completed. The other members are about to complete as well.
    DONE = "done"
    #: The worker's host was told to leave.
    LEFT = "left"
    #: The worker was not in the last membership. It exited as it was told to.
    DISPLACED = "displaced"
    #: The worker was lost.
    LOST = "lost"


def end_of(worker: Worker, before: WorkerState, host: ElasticHost, members: Sequence[str]) -> WorkerEnd:
    """Return the reason why a worker ended, from the states of the worker and its host.

    Args:
        worker: The worker, with its exit code.
        before: The worker's state before it ended.
        host: The worker's host.
        members: The names of the workers in the last membership.
    """
    if before.has_place and worker.name in members and worker.ended_with == 0:
        return WorkerEnd.DONE
    if host.state is HostState.LEAVING:
        return WorkerEnd.LEFT
    if before.has_place and worker.name not in members:
        return WorkerEnd.DISPLACED
    return WorkerEnd.LOST


def replacement_wait(roster: Roster, lost: ElasticHost, now: float) -> float | None:
    """Return the number of seconds until a lost host is replaced. Return None if the host is not replaced."""
    if not lost.replace:
        return None
    if roster.spare is not None:  # the spare host joins at once, even if the lost host is excluded for a long time
        return 0.0
    return None if math.isinf(lost.excluded_until) else max(0.0, lost.excluded_until - now)


def is_hopeless(roster: Roster, places: Places | None, ends: Sequence[Failure]) -> bool:
    """Return whether to give up a job because its hosts end before they have started.

    Replacements of the hosts would end in the same way. The job continues if any host has ever started, because the
    job can then run. The job also continues while an initial host is still starting. More ends are tolerated if the
    hosts ended without a known reason, for example because a machine failed. Fewer ends are tolerated if the hosts
    reported why they cannot take part.

    Args:
        roster: All hosts of the attempt.
        places: The places that a source has named. None without a source.
        ends: The failures with which hosts have ended so far.
    """
    if any(host.up for host in roster.hosts.values()):
        return False
    coming = [
        host for host in roster.present_hosts if not (host.spare or host.origin or host.state is HostState.LEAVING)
    ]
    if not all(stands_by(host, places) for host in coming):
        return False
    explained = sum(failure.cause is not Cause.HOST_LOST and failure.signal is None for failure in ends)
    return explained >= (_EXPLAINED_ENDS if coming else 1) or len(ends) >= _ENDS


def free_places(roster: Roster, places: Places | None) -> float:
    """Return how many more hosts the places have room for. Return ``math.inf`` if places do not limit the hosts."""
    if places is None or places.supply is None:
        return math.inf
    return len(places.supply) - len(roster.running)


def lacking_spares(roster: Roster, places: Places | None, wanted: int) -> int:
    """Return how many spare hosts to start so that the job has ``wanted`` spare hosts."""
    spares = sum(host.spare for host in roster.present_hosts)
    return int(max(0, min(wanted - spares, free_places(roster, places))))


def refuse_more(roster: Roster, places: Places | None, count: int, *, most: int, located: bool) -> None:
    """Raise an error if more hosts are requested than the job can have.

    Args:
        roster: The hosts and workers.
        places: The places that a source has named. None without a source.
        count: The number of additional hosts that are requested.
        most: The largest number of hosts that the job may have.
        located: Whether the backend starts a host only at a place that the source has named.

    Raises:
        ValueError: the job would have more hosts than it may have, or there are too few places for them.
    """
    if places is not None and places.decide and located:
        raise ValueError(f"{places.title} decides which hosts the job has. To add a host, name it in {places.title}.")
    if len(roster.staying) + count > most:
        raise ValueError(
            f"the job has {len(roster.staying)} hosts, so {count} more would exceed max_hosts={most}, the limit of "
            "its distribution."
        )
    if places is None or places.supply is None:
        return
    spare = sum(host.spare and host.state is HostState.READY for host in roster.present_hosts)
    leaving = len(roster.taking_part) - len(roster.staying)
    if count > free_places(roster, places) + spare + leaving:
        has = f"{len(places.supply)} place{'' if len(places.supply) == 1 else 's'}"
        raise ValueError(
            f"{places.title} has {has} ({', '.join(places.supply) or 'none'}), and the job uses "
            f"{len(roster.running)} of them. There is no place for {count} more."
        )


def refuse_fewer(roster: Roster, name: str, limits: Limits, *, per_host: int, least_hosts: int) -> None:
    """Raise an error if too few hosts would remain after the removal of a host.

    Args:
        roster: The hosts and workers.
        name: The host to remove.
        limits: The sizes of the cluster.
        per_host: The number of workers on each host.
        least_hosts: The least number of hosts, for the message.

    Raises:
        ValueError: the job needs more hosts than would remain.
    """
    left = [other for other in roster.staying if other != name]
    if len(left) * per_host < limits.least:
        needed = f"{least_hosts} host{'' if least_hosts == 1 else 's'}"
        raise ValueError(
            f"the job needs at least {needed}, but would have {len(left)} without {name}. Call add_hosts() first, or "
            "end the job with stop()."
        )


def outcome(
    roster: Roster, failures: Mapping[str, Failure], error: str, consequences: Collection[str] = ()
) -> Failure | None:
    """Return the failure of a training that has ended. Return None if the training is complete.

    Args:
        roster: The hosts and workers.
        failures: The failures by the names of the failed workers, in the order of their occurrence.
        error: The driver's error message, or an empty string.
        consequences: The workers that failed only because another worker had failed. The failures of these workers are
            reported only if no other failure is known.
    """
    codes = [roster.workers[name].ended_with for name in roster.members if name in roster.workers]
    if any(code == 0 for code in codes) and not error:
        return None
    if error and not error.startswith("no worker is left"):
        # Horovod has stopped because of a limit of its own, which is the reason. The last failure is only the hint.
        return dataclasses.replace(failed(error), hints=last_failure(failures))
    of_members = [name for name in roster.members if name in failures]
    causes = [name for name in of_members if name not in consequences] or of_members
    known = [failures[name] for name in causes] or list(failures.values())[-1:]
    return known[0] if known else failed(error or "every worker ended with an error")


def last_failure(failures: Mapping[str, Failure]) -> tuple[str, ...]:
    """Return a hint that names the last failure. Return an empty tuple if no worker has failed."""
    return tuple(f"the last failure: {failure.summary()}" for failure in list(failures.values())[-1:])


def failed(message: str, cause: Cause = Cause.PROCESS) -> Failure:
    """Return a failure of the elastic training as a whole."""
    return Failure(cause=cause, message=f"elastic training: {message}.")


def changes(joined: Sequence[str], left: Sequence[str]) -> str:
    """Return a message that names the hosts whose workers have joined, and the hosts whose workers have left."""

    def hosts(workers: Sequence[str]) -> str:
        return ", ".join(dict.fromkeys(split_worker(name)[0] for name in workers))

    parts = [f"joined: {hosts(joined)}"] * bool(joined) + [f"left: {hosts(left)}"] * bool(left)
    return f" ({'; '.join(parts)})" if parts else ""
