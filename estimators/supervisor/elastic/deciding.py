"""The next step of an elastic training, decided from its hosts and workers. Pure: time is an argument, no effects."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping, Sequence

from container.contract.elastic import split_worker
from container.contract.failures import Cause, Failure
from container.contract.membership import natural_key
from estimators.supervisor.elastic.course import State
from estimators.supervisor.elastic.members import ElasticHost, HostState, Roster, Worker, WorkerState
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import Limits, next_offer

#: #: After how many ends of hosts a job fails if no host has ever come up: the first number counts ends with a known
#: reason, while other hosts wait for the source to name places; the second counts all ends.
_EXPLAINED_ENDS, _ENDS = 3, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """Which workers the cluster should have, and for how many it still waits.

    Attributes:
        workers: The workers to send to the driver; None: send nothing now.
        again_at: When to decide again at the latest, because a limit delays a change until then.
        awaited: If the first workers are incomplete: how many are ready, and how many are starting.
        shortage: Whether a training that has begun has fewer workers than it needs.
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
        state: State of the training.
        roster: The hosts and workers.
        limits: The sizes of the cluster, and how much may change at once.
        offered: The workers that the driver received last.
        places: The places that a source has named; None without a source.
        now: Seconds on a clock that does not go back.
        grown_at: When the cluster last grew, on the same clock; None: never.
        all_there: Whether the start waits for workers that are still starting.
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
        # rank 0 is on algo-1, in whatever order the workers became ready
        alive.sort(key=lambda worker: natural_key(worker.name))
    current = [name for name in offered if roster.workers[name].state is not WorkerState.ENDED]
    if state is State.SETTLING and len(current) >= limits.least:
        return Decision()
    ready = [(worker.name, worker.host) for worker in alive]
    offer = next_offer(current, ready, roster.leaving, limits, now=now, grown_at=grown_at)
    if state.has_begun and len(offer.workers) < limits.least:
        # # Workers on hosts with a notice train until their host is taken away: waiting for others would gain them
        # nothing.
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
    """Return whether a host still waits for the source to name its place."""
    return places is not None and places.awaits(host.name)


class WorkerEnd(enum.Enum):
    """Kind of a worker's end."""

    #: #: A member has completed the script: the others are about to end as well.
    DONE = "done"
    #: Its host was told to leave.
    LEFT = "left"
    #: #: It had no place in the last membership, and exited as instructed.
    DISPLACED = "displaced"
    #: It was lost.
    LOST = "lost"


def end_of(worker: Worker, before: WorkerState, host: ElasticHost, members: Sequence[str]) -> WorkerEnd:
    """Return the kind of a worker's end, given the worker's state before."""
    if before.has_place and worker.name in members and worker.ended_with == 0:
        return WorkerEnd.DONE
    if host.state is HostState.LEAVING:
        return WorkerEnd.LEFT
    if before.has_place and worker.name not in members:
        return WorkerEnd.DISPLACED
    return WorkerEnd.LOST


def replacement_wait(roster: Roster, lost: ElasticHost, now: float) -> float | None:
    """Return after how many seconds a lost host is replaced; None if it is not."""
    if not lost.replace:
        return None
    if roster.spare is not None:  # the spare host joins at once, however long the lost host is excluded
        return 0.0
    return None if math.isinf(lost.excluded_until) else max(0.0, lost.excluded_until - now)


def is_hopeless(roster: Roster, places: Places | None, ends: Sequence[Failure]) -> bool:
    """Return whether a job fails because its hosts end before they come up: replacements would do the same.

    A host that has come up shows that the job can run. A first host that is still starting may show it. A host that is
    lost without a reason, such as a failed machine, gets more tries than a host that reports why it cannot take part.

    Args:
        roster: All hosts so far.
        places: The places that a source has named; None without a source.
        ends: How hosts have ended so far.
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
    """Return how many more hosts there are places for; ``math.inf`` if nothing limits the places."""
    if places is None or places.supply is None:
        return math.inf
    return len(places.supply) - len(roster.running)


def lacking_spares(roster: Roster, places: Places | None, wanted: int) -> int:
    """Return how many spare hosts to start if ``wanted`` are to be kept."""
    spares = sum(host.spare for host in roster.present_hosts)
    return int(max(0, min(wanted - spares, free_places(roster, places))))


def refuse_more(roster: Roster, places: Places | None, count: int, *, most: int, located: bool) -> None:
    """Raise an error if more hosts are requested than the job can have.

    Args:
        roster: The hosts and workers.
        places: The places that a source has named; None without a source.
        count: How many more hosts are requested.
        most: The most hosts that the job may have.
        located: Whether the backend starts a host only at a named place.

    Raises:
        ValueError: there would be more than the job may have, or there are no places for them.
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
    """Raise an error if too few hosts would be left without a host.

    Raises:
        ValueError: the job needs more hosts than would be left.
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
    """Return why the training has failed when its driver reports the end; None if the training is complete.

    Args:
        roster: The hosts and workers.
        failures: The failures of workers, by the workers' names, in order.
        error: The driver's error message, or an empty string.
        consequences: The workers whose failure follows from another worker's failure; the other one is reported.
    """
    codes = [roster.workers[name].ended_with for name in roster.members if name in roster.workers]
    if any(code == 0 for code in codes) and not error:
        return None
    if error and not error.startswith("no worker is left"):
        # # Horovod's message about its own limits is the reason; the last failure that led to it is the hint.
        return dataclasses.replace(failed(error), hints=last_failure(failures))
    of_members = [name for name in roster.members if name in failures]
    causes = [name for name in of_members if name not in consequences] or of_members
    known = [failures[name] for name in causes] or list(failures.values())[-1:]
    return known[0] if known else failed(error or "every worker ended with an error")


def last_failure(failures: Mapping[str, Failure]) -> tuple[str, ...]:
    """Return a hint that names the last failure; nothing if no worker has failed."""
    return tuple(f"the last failure: {failure.summary()}" for failure in list(failures.values())[-1:])


def failed(message: str, cause: Cause = Cause.PROCESS) -> Failure:
    """Return a failure of the training itself."""
    return Failure(cause=cause, message=f"elastic training: {message}.")


def changes(joined: Sequence[str], left: Sequence[str]) -> str:
    """Return a text with the hosts whose workers have joined and left."""

    def hosts(workers: Sequence[str]) -> str:
        return ", ".join(dict.fromkeys(split_worker(name)[0] for name in workers))

    parts = [f"joined: {hosts(joined)}"] * bool(joined) + [f"left: {hosts(left)}"] * bool(left)
    return f" ({'; '.join(parts)})" if parts else ""
