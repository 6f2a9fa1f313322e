"""Who joins, who leaves, and who is left out for how long."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from estimators.supervisor.elastic.policy import GrowingCooldown, Limits, next_offer

LIMITS = Limits(first=1, least=1, most=4)
READY = [("algo-1.0.0", "algo-1"), ("algo-2.0.0", "algo-2"), ("algo-3.0.0", "algo-3")]
NAMES = tuple(worker for worker, _ in READY)


def test_a_cooldown_doubles_from_the_shortest_to_the_longest() -> None:
    policy = GrowingCooldown(1.0, 6.0)
    assert [policy.failed("algo-1", now) - now for now in (10.0, 20.0, 40.0, 80.0, 160.0)] == [1.0, 2.0, 4.0, 6.0, 6.0]
    assert policy.failed("algo-2", 160.0) == 161.0
    assert policy.failed("algo-1", 160.0 + 3601.0) == 3762.0  # long ago is forgotten


def test_all_that_are_ready_begin() -> None:
    assert next_offer([], READY, [], LIMITS, now=0.0, grown_at=None).workers == NAMES


def test_the_oldest_come_first_whatever_joins() -> None:
    offer = next_offer(NAMES[1:], READY, [], LIMITS, now=0.0, grown_at=None)
    assert offer.workers == (*NAMES[1:], NAMES[0])  # a worker that came back is the youngest


def test_it_never_grows_beyond_the_most() -> None:
    limits = dataclasses.replace(LIMITS, most=2)
    assert next_offer(NAMES[:1], READY, [], limits, now=0.0, grown_at=None).workers == NAMES[:2]


def test_a_leaving_host_goes_and_none_of_it_joins() -> None:
    assert next_offer(NAMES, READY, ["algo-1"], LIMITS, now=0.0, grown_at=None).workers == NAMES[1:]
    assert next_offer(NAMES[1:], READY, ["algo-1"], LIMITS, now=0.0, grown_at=None).workers == NAMES[1:]


def test_only_so_many_join_or_leave_at_once() -> None:
    limits = dataclasses.replace(LIMITS, max_join=1, max_leave=1)
    offer = next_offer(NAMES[:1], READY, [], limits, now=0.0, grown_at=None)
    assert offer.workers == NAMES[:2]
    assert offer.again_at is not None
    assert next_offer(NAMES, READY, ["algo-3", "algo-1"], limits, now=0.0, grown_at=None).workers == NAMES[:2]


def test_growth_waits_for_its_time_unless_there_are_too_few() -> None:
    limits = dataclasses.replace(LIMITS, grow_every=10.0)
    offer = next_offer(NAMES[:1], READY, [], limits, now=5.0, grown_at=0.0)
    assert (offer.workers, offer.again_at) == (NAMES[:1], 10.0)
    assert next_offer(NAMES[:1], READY, [], limits, now=10.0, grown_at=0.0).workers == NAMES
    few = dataclasses.replace(limits, least=2)
    assert next_offer(NAMES[:1], READY, [], few, now=5.0, grown_at=0.0).workers == NAMES


@given(
    st.lists(st.sampled_from([f"algo-{number}" for number in range(1, 9)]), unique=True),
    st.data(),
    st.integers(1, 8),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(1, 3),
)
def test_whatever_comes_those_who_stay_keep_their_order(
    hosts: list[str], data: st.DataObject, most: int, max_join: int | None, max_leave: int | None
) -> None:
    ready = [(f"{host}.{slot}.0", host) for host in hosts for slot in range(2)]
    current = [worker for worker, _ in ready if data.draw(st.booleans())]
    leaving = [host for host in hosts if data.draw(st.booleans())]
    limits = Limits(first=1, least=1, most=most, max_join=max_join, max_leave=max_leave)
    offer = next_offer(current, ready, leaving, limits, now=0.0, grown_at=None)
    places = dict(ready)
    kept = [worker for worker in offer.workers if worker in current]
    assert kept == [worker for worker in current if worker in kept]
    assert list(offer.workers[: len(kept)]) == kept  # whoever has the state comes before whoever has not
    assert len(set(offer.workers)) == len(offer.workers)
    assert len(offer.workers) <= max(most, len(kept))
    assert not [worker for worker in offer.workers[len(kept) :] if places[worker] in leaving]
    gone = {places[worker] for worker in current} - {places[worker] for worker in offer.workers}
    assert gone <= set(leaving)
    if max_leave is not None:
        assert len(gone) <= max_leave
    if max_join is not None and current:
        new = {places[worker] for worker in offer.workers} - {places[worker] for worker in current}
        assert len(new) <= max_join
