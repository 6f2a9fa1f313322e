"""What an elastic training does next, decided from who there is. Pure: time is given, nothing is started or told."""

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

#: After how many ends a job of which no host has come up fails: of hosts that have said why, while others wait for the
#: source to name places for them; and of any hosts.
_EXPLAINED_ENDS, _ENDS = 3, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """Who shall be in the cluster, and who is still waited for.

    Attributes:
        workers: Of whom the driver is to be told; None: it is told nothing now.
        again_at: When it should be decided again at the latest, since a limit holds something back until then.
        awaited: Where the first workers are not all there: how many are, and how many are on their way.
        shortage: Whether a training that has begun has fewer than it needs.
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
    """Decide who shall be in the cluster.

    Args:
        state: Where the training stands.
        roster: Who there is.
        limits: How much may change at once.
        offered: Of whom the driver was told last.
        places: The places that are named, where somebody names them.
        now: Seconds on a clock that does not go back.
        grown_at: When the cluster last grew, on the same clock; None: never.
        all_there: Whether those who are still coming at the beginning are waited for.
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
        alive.sort(key=lambda worker: natural_key(worker.name))  # rank 0 is on algo-1, whoever was ready first
    current = [name for name in offered if roster.workers[name].state is not WorkerState.ENDED]
    if state is State.SETTLING and len(current) >= limits.least:
        return Decision()
    ready = [(worker.name, worker.host) for worker in alive]
    offer = next_offer(current, ready, roster.leaving, limits, now=now, grown_at=grown_at)
    if state.has_begun and len(offer.workers) < limits.least:
        # Who will be taken away trains on until then: to wait for others is of no use to it.
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
    """Return whether it is not known yet for which place a host stands."""
    return places is not None and places.awaits(host.name)


class WorkerEnd(enum.Enum):
    """What the end of a worker is."""

    #: A member is through with the script: the others are about to end as well.
    DONE = "done"
    #: Its host was told to leave.
    LEFT = "left"
    #: It had no place in the last membership, and left as it was told to.
    DISPLACED = "displaced"
    #: It was lost.
    LOST = "lost"


def end_of(worker: Worker, before: WorkerState, host: ElasticHost, members: Sequence[str]) -> WorkerEnd:
    """Return what the end of a worker is, which was in a state before."""
    if before.has_place and worker.name in members and worker.ended_with == 0:
        return WorkerEnd.DONE
    if host.state is HostState.LEAVING:
        return WorkerEnd.LEFT
    if before.has_place and worker.name not in members:
        return WorkerEnd.DISPLACED
    return WorkerEnd.LOST


def replacement_wait(roster: Roster, lost: ElasticHost, now: float) -> float | None:
    """Return after how many seconds another host comes for one that was lost; None if none does."""
    if not lost.replace:
        return None
    if roster.spare is not None:  # it joins, for however long the lost one is left out
        return 0.0
    return None if math.isinf(lost.excluded_until) else max(0.0, lost.excluded_until - now)


def is_hopeless(roster: Roster, places: Places | None, ends: Sequence[Failure]) -> bool:
    """Return whether a job fails because its hosts end before they come up: others would do so as well.

    A host that has come up shows that the job can run, and one that is still coming, and replaces none, may show it.
    A host that is lost without a reason, such as a failed machine, is given more tries than one that says why it
    cannot take part.

    Args:
        roster: Who there has been.
        places: The places that are named, where somebody names them.
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
    """Return how many more hosts may be asked for, as far as places go; ``math.inf`` where nobody counts them."""
    if places is None or places.supply is None:
        return math.inf
    return len(places.supply) - len(roster.running)


def lacking_spares(roster: Roster, places: Places | None, wanted: int) -> int:
    """Return how many spare hosts are to be started, where so many are wanted."""
    spares = sum(host.spare for host in roster.present_hosts)
    return int(max(0, min(wanted - spares, free_places(roster, places))))


def refuse_more(roster: Roster, places: Places | None, count: int, *, most: int, located: bool) -> None:
    """Refuse hosts that are asked for and cannot be.

    Args:
        roster: Who there is.
        places: The places that are named.
        count: How many more are asked for.
        most: How many there may be.
        located: Whether a host comes only at a place that is named for it.

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
    """Refuse to let a host go without which too few would be left.

    Raises:
        ValueError: says so.
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
    """Return why the training has failed, whose driver says that nobody is left to wait for; None if it is complete.

    Args:
        roster: Who there was.
        failures: Of the workers that have failed last, by their names.
        error: What the driver says of it, if that is an error.
        consequences: The workers whose failure follows from another one's, which is told then.
    """
    codes = [roster.workers[name].ended_with for name in roster.members if name in roster.workers]
    if any(code == 0 for code in codes) and not error:
        return None
    if error and not error.startswith("no worker is left"):
        # What Horovod says of its own limits is the reason; why it came to that is the hint.
        return dataclasses.replace(failed(error), hints=last_failure(failures))
    of_members = [name for name in roster.members if name in failures]
    causes = [name for name in of_members if name not in consequences] or of_members
    known = [failures[name] for name in causes] or list(failures.values())[-1:]
    return known[0] if known else failed(error or "every worker ended with an error")


def last_failure(failures: Mapping[str, Failure]) -> tuple[str, ...]:
    """Return the hint that names it; none where no worker has failed."""
    return tuple(f"the last failure: {failure.summary()}" for failure in list(failures.values())[-1:])


def failed(message: str, cause: Cause = Cause.PROCESS) -> Failure:
    """Return a failure of the training itself."""
    return Failure(cause=cause, message=f"elastic training: {message}.")


def changes(joined: Sequence[str], left: Sequence[str]) -> str:
    """Return whose workers have joined and left, in words."""

    def hosts(workers: Sequence[str]) -> str:
        return ", ".join(dict.fromkeys(split_worker(name)[0] for name in workers))

    parts = [f"joined: {hosts(joined)}"] * bool(joined) + [f"left: {hosts(left)}"] * bool(left)
    return f" ({'; '.join(parts)})" if parts else ""
