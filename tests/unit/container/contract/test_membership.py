"""Who is in the cluster, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract.membership import ClusterHost, Membership, natural_key


def test_ranks_are_placed_host_by_host() -> None:
    membership = Membership(
        hosts=(ClusterHost(name="algo-1", slots=2), ClusterHost(name="algo-2"), ClusterHost(name="algo-3", slots=2))
    )
    assert [(rank, host.name, local) for rank, host, local in membership.ranks()] == [
        (0, "algo-1", 0),
        (1, "algo-1", 1),
        (2, "algo-2", 0),
        (3, "algo-3", 0),
        (4, "algo-3", 1),
    ]
    assert membership.size == 5
    assert membership.master.name == "algo-1"


def test_hosts_are_in_natural_order() -> None:
    names = [f"algo-{number}" for number in (10, 2, 1, 11, 9)]
    assert Membership.of(names).names == ("algo-1", "algo-2", "algo-9", "algo-10", "algo-11")


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=40, unique=True), st.integers(1, 9))
def test_every_rank_has_one_place(numbers: list[int], slots: int) -> None:
    membership = Membership.of([f"algo-{number}" for number in numbers], slots=slots)
    ranks = membership.ranks()
    assert [rank for rank, _, _ in ranks] == list(range(membership.size))
    assert len({(host.name, local) for _, host, local in ranks}) == membership.size == slots * len(numbers)
    assert [int(name[5:]) for name in membership.names] == sorted(numbers)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_two_names_can_be_ordered(one: str, other: str) -> None:
    assert (natural_key(one) <= natural_key(other)) or (natural_key(other) < natural_key(one))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Membership(hosts=()), "at least one host"),
        (lambda: Membership.of(["algo-1", "algo-1"]), "must be unique"),
        (lambda: ClusterHost(name="algo-1", slots=0), "slots must be at least 1, got 0"),
    ],
)
def test_what_makes_no_cluster_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_an_address_is_where_others_reach_a_host() -> None:
    assert ClusterHost(name="algo-1").reach == "algo-1"
    assert ClusterHost(name="algo-1", address="10.0.0.7").reach == "10.0.0.7"
