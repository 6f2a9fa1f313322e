"""Who reads what, as plain data."""

from __future__ import annotations

import itertools
import random

import pytest

from container.contract.sharding import deal, imbalance, shuffled, shuffled_order


@pytest.mark.parametrize("hosts", range(1, 12))
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 40, 101])
def test_each_object_has_one_host_and_counts_differ_by_one_at_most(count: int, hosts: int) -> None:
    items = [f"part-{number}" for number in range(count)]
    shares = [deal(items, hosts, host) for host in range(hosts)]
    assert sorted(itertools.chain(*shares)) == sorted(items)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    for share in shares:
        assert list(share) == sorted(share, key=items.index), "in the order that all agree on"


@pytest.mark.parametrize(("hosts", "host"), [(1, 1), (2, -1), (3, 3), (0, 0)])
def test_a_host_that_there_is_not(hosts: int, host: int) -> None:
    with pytest.raises(ValueError, match=f"host {host} of {hosts}"):
        deal([1, 2], hosts, host)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_an_order_is_a_permutation_that_seed_and_epoch_alone_decide(count: int) -> None:
    orders = {(seed, epoch): shuffled_order(count, seed, epoch) for seed in (0, 7) for epoch in (0, 1, 10)}
    for (seed, epoch), order in orders.items():
        assert sorted(order) == list(range(count))
        assert shuffled_order(count, seed, epoch) == order
    if count > 5:
        assert len({tuple(order) for order in orders.values()}) == len(orders), "each epoch and seed has its own"


def test_the_order_of_a_version_is_that_of_all_versions() -> None:
    """A training that goes on in another environment must find the same order."""
    assert shuffled_order(8, 7, 0) == [7, 6, 3, 1, 4, 2, 5, 0]
    assert shuffled_order(8, 7, 1) == [0, 7, 6, 4, 5, 1, 3, 2]


def test_seeds_and_epochs_are_not_run_together() -> None:
    assert shuffled_order(50, 1, 23) != shuffled_order(50, 12, 3)


def test_an_order_favours_nobody() -> None:
    """Each of 5 items comes first in about a fifth of 2,000 epochs."""
    first = [shuffled_order(5, 3, epoch)[0] for epoch in range(2000)]
    assert all(300 < first.count(item) < 500 for item in range(5))


def test_shuffling_before_dealing_loses_nothing_in_any_epoch() -> None:
    chance = random.Random(4)
    for _ in range(50):
        count, hosts, seed = chance.randrange(30), chance.randrange(1, 9), chance.randrange(1 << 40)
        items = [object() for _ in range(count)]
        for epoch in range(3):
            order = shuffled(items, seed, epoch)
            shares = [deal(order, hosts, host) for host in range(hosts)]
            assert {id(item) for item in itertools.chain(*shares)} == {id(item) for item in items}
            assert sum(map(len, shares)) == count
    assert shuffled((1, 2, 3), None, 5) == (1, 2, 3)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], None),
        ([5], None),
        ([0, 0], None),
        ([10, 10, 10], None),
        ([10, 15], None),
        ([10, 16], "algo-2 gets 16 bytes, algo-1 gets 10."),
        ([5, 0], "algo-2 gets nothing: there are fewer objects than hosts."),
        ([5, 0, 0], "algo-2, algo-3 get nothing"),
        (
            [3000, 1000, 2000],
            "algo-1 gets 3,000 bytes, algo-2 gets 1,000. Use objects of about the same size, and make their number a "
            "multiple of 3.",
        ),
    ],
)
def test_what_is_said_of_uneven_shares(shares: list[int], words: str | None) -> None:
    said = imbalance(shares)
    assert said is None if words is None else words in str(said)
