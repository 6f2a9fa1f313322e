"""Distribute objects over hosts and shuffle their order, with pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Shares that differ by more than this factor are worth a warning.
_UNEVEN = 1.5


def deal(items: Sequence[T], hosts: int, host: int) -> tuple[T, ...]:
    """Return one host's objects of a ShardedByS3Key channel.

    The objects are assigned to the hosts in turn. Host *h* of *n* hosts gets the objects *h*, *h+n*, *h+2n* and so on.
    Therefore every object is assigned to exactly one host, and the hosts' numbers of objects differ by at most one. On
    SageMaker, only these two facts are documented. Therefore scripts must not rely on the assignment of a certain
    object to a certain host.

    Args:
        items: All objects, in the same order on every host.
        hosts: Number of hosts.
        host: Number of the host, from 0.

    Raises:
        ValueError: there is no host with this number.
    """
    if not 0 <= host < hosts:
        raise ValueError(f"host {host} of {hosts}: hosts are numbered from 0.")
    return tuple(items[host::hosts])


def shuffled_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return the order of ``count`` items in one epoch. The order depends only on ``count``, ``seed`` and ``epoch``.

    The order is the same on every host and with every version of Python. The order does not depend on the items
    themselves.

    Args:
        count: Number of items.
        seed: The seed of SageMaker's ShuffleConfig.
        epoch: Number of the epoch, from 0.

    Returns:
        The items' indices.
    """
    start = hashlib.blake2b(f"{seed}:{epoch}:".encode(), digest_size=16)

    def place(index: int) -> bytes:
        hashed = start.copy()
        hashed.update(b"%d" % index)
        return hashed.digest()

    return sorted(range(count), key=place)


def shuffled(items: Sequence[T], seed: int | None, epoch: int) -> tuple[T, ...]:
    """Return the items in the shuffled order of an epoch (see :func:`shuffled_order`). If ``seed`` is None, return the
    items in their original order.
    """
    if seed is None:
        return tuple(items)
    return tuple(items[index] for index in shuffled_order(len(items), seed, epoch))


def imbalance(shares: Sequence[int], what: str = "bytes") -> str | None:
    """Return a warning if a host gets no data, or more than 1.5 times the data of another host. Otherwise return None.

    Args:
        shares: The amount of data that each host has to read.
        what: The unit of these amounts.
    """
    if len(shares) < 2 or not any(shares):
        return None
    empty = [index for index, share in enumerate(shares) if share == 0]
    if empty:
        names = ", ".join(f"algo-{index + 1}" for index in empty)
        return f"{names} {'gets' if len(empty) == 1 else 'get'} nothing: there are fewer objects than hosts."
    least, most = min(shares), max(shares)
    if most > _UNEVEN * least:
        return (
            f"the shares are uneven: algo-{shares.index(most) + 1} gets {most:,} {what}, "
            f"algo-{shares.index(least) + 1} gets {least:,}. Use objects of about the same size, and make their "
            f"number a multiple of {len(shares)}."
        )
    return None
