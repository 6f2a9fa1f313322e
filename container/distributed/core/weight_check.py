"""Compare the ranks' weights after some of the first steps, to detect ranks that train separately without any error
message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from container.contract.errors import WeightsDifferError
from container.distributed.core.collectives import Collectives

#: Numbers of steps after which the weights are compared.
STEPS = (1, 2, 8, 32, 128)

#: If the weights of two ranks differ by less than this share of their total change, the cause is rounding: different
#: processors round differently. The weights of ranks that train separately differ by as much as they have changed.
_ROUNDING = 1e-2
#: To distinguish rounding from separate training, only about this many elements of a larger weight are compared. The
#: digest covers all elements.
_SAMPLE = 1 << 16


class Guard:
    """A check that the weights of all ranks are equal. The check compares digests of the weights.

    Args:
        collectives: The collective operations of the ranks.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._start: np.ndarray[Any, Any] | None = None

    def start(self, weights: Sequence[Any]) -> None:
        """Record the initial weights. Without them, :meth:`check` cannot recognise differences that are caused by
        rounding, and reports every difference.
        """
        self._start = projections(weights)

    def check(self, weights: Sequence[Any], *, step: int | None = None, cause: str = "") -> None:
        """Compare the weights of all ranks. All ranks must call this method after the same step.

        Args:
            weights: The trainable variables, or their values as arrays.
            step: Number of finished steps, or None if unknown.
            cause: A sentence about the likely cause, for the error message.

        Raises:
            WeightsDifferError: on every rank, if the weights differ by more than rounding.
        """
        if self._collectives.size == 1:
            return
        own = digest(weights)
        digests = self._collectives.gather_array(np.array([own], np.int64))[:, 0]
        if (digests == digests[0]).all():
            return
        if self._differ_by_rounding(weights):
            return
        groups = [np.flatnonzero(digests == value).tolist() for value in dict.fromkeys(digests.tolist())]
        when = f"after step {step}" if step is not None else "now"
        raise WeightsDifferError(
            f"the weights of the {len(digests)} ranks should be equal, but differ {when}. Groups of ranks with equal "
            f"weights: {' | '.join(_ranks(group) for group in groups)}. {cause}".strip()
        )

    def _differ_by_rounding(self, weights: Sequence[Any]) -> bool:
        every = self._collectives.gather_array(projections(weights))  # shape: (ranks, weights)
        spread = float(np.abs(every - every[0]).sum())
        if self._start is None or not np.isfinite(spread):
            return False
        moved = float(np.abs(every - self._start).sum(axis=1).max())
        return spread <= _ROUNDING * moved


def digest(weights: Sequence[Any]) -> int:
    """Return a digest of the weights' bits. Equal weights have equal digests.

    The digest is a number from -2**63 to 2**63 - 1.
    """
    hashed = hashlib.blake2b(digest_size=8)
    for weight in weights:
        hashed.update(np.ascontiguousarray(_value(weight)).view(np.uint8).data)
    return int.from_bytes(hashed.digest(), "little", signed=True)


def projections(weights: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return one number for each weight: the sum of the weight's elements, each with a fixed random sign. Of a large
    weight, only a sample of the elements is added up. Shape: (weights,).
    """
    return np.array([_projection(_value(weight)) for weight in weights], np.float64)


def _value(weight: Any) -> np.ndarray[Any, Any]:
    return weight if isinstance(weight, np.ndarray) else np.asarray(weight.numpy())


def _projection(array: np.ndarray[Any, Any]) -> float:
    flat = np.ravel(array)
    flat = flat[:: max(1, flat.size // _SAMPLE)].astype(np.float64)
    signs = np.random.default_rng(flat.size).choice(np.array([-1.0, 1.0]), flat.size)
    return float(flat @ signs)


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > 8 else ''}"
