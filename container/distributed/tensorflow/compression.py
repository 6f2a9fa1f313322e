"""Send gradients between the ranks as 16-bit floats, scaled into the range of these floats.

A 16-bit float represents magnitudes from 6e-8 to 65504. Each gradient is multiplied by a power of two. The power is the
same on every rank, and is chosen such that the sum over the ranks is below the maximum. If the smallest of the
multiplied values would be rounded to zero, or if a value is infinite or NaN, all gradients of the step are sent
uncompressed. Therefore no value becomes zero or infinite because of the compression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from container.distributed.tensorflow.collectives import TensorCollectives

#: Sums over the ranks stay below 2 ** 15.
_HIGHEST = 15
#: Scaled magnitudes down to 2 ** -22 keep three bits; the smallest 16-bit float is 2 ** -24.
_LOWEST = -22
#: Maximum exponent of a scale: a 32-bit float can represent the scale and its inverse.
_LIMIT = 126
#: Represents the exponent of zero (negative) and of infinity (positive).
_BEYOND = 1000.0


def reduce_fp16(
    collectives: TensorCollectives, gradients: Sequence[Any], op: str, *, name: str, on_whole: Any = None
) -> list[Any]:
    """Sum or average gradients over the ranks. The gradients are sent as 16-bit floats if 16-bit floats can represent
    all of them.

    Args:
        collectives: The collective operations of the ranks.
        gradients: The gradients, as dense tensors. Tensors that are not 32-bit floats are sent unchanged.
        op: ``"average"`` or ``"sum"``.
        name: A name that distinguishes this operation from other operations. The name must be the same on every rank.
        on_whole: Called, within the graph, in steps whose gradients are sent as 32-bit floats. None to call nothing.
    """
    import tensorflow as tf

    places = [place for place, tensor in enumerate(gradients) if tensor.dtype == tf.float32]
    others = [place for place in range(len(gradients)) if place not in places]
    results: list[Any] = [None] * len(gradients)
    whole = collectives.reduce([gradients[place] for place in others], op, name=f"{name}.whole")
    for place, tensor in zip(others, whole, strict=True):
        results[place] = tensor
    if not places:
        return results
    packed = [gradients[place] for place in places]
    size = collectives.size
    exponents = tf.stack([exponent for tensor in packed for exponent in _exponents(tensor)])
    # Shape: (tensors, 2): the highest exponent, and the negative of the lowest exponent, over all ranks.
    [limits] = collectives.reduce([exponents], "max", name=f"{name}.range")
    limits = tf.reshape(limits, [len(packed), 2])
    shifts = tf.clip_by_value(_HIGHEST - math.ceil(math.log2(size)) - limits[:, 0], -_LIMIT, _LIMIT)
    fits = tf.reduce_all((limits[:, 0] < _BEYOND) & (shifts - limits[:, 1] >= _LOWEST))

    def as_half() -> list[Any]:
        scaled = [tf.cast(tensor * _power(shifts[i]), tf.float16) for i, tensor in enumerate(packed)]
        summed = collectives.reduce(scaled, "sum", name=f"{name}.half")
        divisor = float(size) if op == "average" else 1.0
        return [
            tf.ensure_shape(tf.cast(tensor, tf.float32) * _power(-shifts[i]) / divisor, packed[i].shape)
            for i, tensor in enumerate(summed)
        ]

    def as_they_are() -> list[Any]:
        if on_whole is not None:
            on_whole()
        reduced = collectives.reduce(packed, op, name=f"{name}.single")
        return [tf.ensure_shape(tensor, packed[i].shape) for i, tensor in enumerate(reduced)]

    for place, tensor in zip(places, tf.nest.flatten(tf.cond(fits, as_half, as_they_are)), strict=True):
        results[place] = tensor
    return results


def _exponents(tensor: Any) -> tuple[Any, Any]:
    """Return the binary exponent of a tensor's largest magnitude, and the negative binary exponent of its smallest
    nonzero magnitude. For a tensor of zeros, both are ``-_BEYOND``. If an element is infinite or NaN, the first is
    ``_BEYOND``.
    """
    import tensorflow as tf

    magnitudes = tf.abs(tf.reshape(tensor, [-1]))
    # An empty or all-zero tensor sets no limit, neither a high nor a low one.
    highest = tf.reduce_max(tf.concat([magnitudes, [0.0]], 0))
    lowest = tf.reduce_min(tf.where(magnitudes > 0, magnitudes, tf.float32.max))
    top = tf.where(highest > 0, tf.math.ceil(_log2(highest)), -_BEYOND)
    top = tf.where(tf.reduce_all(tf.math.is_finite(magnitudes)), top, _BEYOND)
    bottom = tf.where(highest > 0, -tf.math.floor(_log2(lowest)), -_BEYOND)
    return top, bottom


def _log2(value: Any) -> Any:
    import tensorflow as tf

    return tf.math.log(tf.maximum(value, 1e-38)) / math.log(2.0)


def _power(exponent: Any) -> Any:
    """Return the exact value of two to the power of a whole number."""
    import tensorflow as tf

    # The bits of a 32-bit float whose fraction is zero: only the exponent.
    return tf.bitcast((tf.cast(exponent, tf.int32) + 127) * (1 << 23), tf.float32)
