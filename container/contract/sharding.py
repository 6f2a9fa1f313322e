"""Deal objects to hosts and shuffle their order, as pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: Shares that differ by more than this factor are worth a warning.
_UNEVEN = 1.5


def deal(items: Sequence[T], hosts: int, host: int) -> tuple[T, ...]:
    """Return one host's share of a channel that is ShardedByS3Key.

    The items are dealt like cards, in their order: host *h* of *n* gets items *h*, *h+n*, *h+2n* … So every item has
    exactly one host, and the hosts' counts differ by one at most. SageMaker does not document its own rule beyond
    that; nothing may rely on which host has which object.

    Args:
        items: All objects, in an order that every host agrees on.
        hosts: How many hosts there are.
        host: Which one it is, from 0.

    Raises:
        ValueError: there is no such host.
    """
    if not 0 <= host < hosts:
        raise ValueError(f"host {host} of {hosts}: hosts are numbered from 0.")
    return tuple(items[host::hosts])


def shuffled_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return the order of ``count`` items in one epoch, a function of seed and epoch alone.

    It is the same on every host, with every version of Python, and does not depend on what the items are.

    Args:
        count: How many items there are.
        seed: ShuffleConfig's seed.
        epoch: The epoch, from 0.
    """
    start = hashlib.blake2b(f"{seed}:{epoch}:".encode(), digest_size=16)

    def place(index: int) -> bytes:
        hashed = start.copy()
        hashed.update(b"%d" % index)
        return hashed.digest()

    return sorted(range(count), key=place)


def shuffled(items: Sequence[T], seed: int | None, epoch: int) -> tuple[T, ...]:
    """Return the items in the order of an epoch; as they are without a seed."""
    if seed is None:
        return tuple(items)
    return tuple(items[index] for index in shuffled_order(len(items), seed, epoch))


def imbalance(shares: Sequence[int], what: str = "bytes") -> str | None:
    """Return a warning about uneven shares; None when they are even enough.

    Args:
        shares: What each host has to read.
        what: The unit of the shares.
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
