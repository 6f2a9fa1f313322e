"""Compute metrics over the records of all ranks, and count each record once.

The records of channels in Pipe mode cannot be counted in advance. Each rank reads its records only once, in one epoch
of the stream, and counts them meanwhile.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from container.contract.errors import DistributedError
from container.distributed.tensorflow.collectives import TensorCollectives

#: Maximum size, in bytes, of the names of a model's metrics. The ranks exchange the names in arrays of this size,
#: because a rank without records does not know them.
_NAMES_BYTES = 1 << 14


class EvaluationPart:
    """The batches of one rank for an evaluation. The batches can be read only once.

    Args:
        batches: The batches, as a ``tf.data.Dataset``.
        records: Number of records in the batches. If None, the records are counted while they are read.

    Attributes:
        dataset: The batches, as a dataset that can be iterated over once. None if there are no batches.
        records: Number of records in the batches. While the records are counted, the number that was read so far.
    """

    def __init__(self, batches: Any, records: int | None) -> None:
        import tensorflow as tf

        self.records = records or 0
        self.dataset: Any = batches if records else None
        if records is not None:
            return
        iterator = iter(batches)
        first = next(iterator, None)
        if first is not None:

            def read() -> Iterator[Any]:
                for batch in itertools.chain([first], iterator):
                    self.records += int(tf.shape(tf.nest.flatten(batch)[0])[0])
                    yield batch

            self.dataset = tf.data.Dataset.from_generator(read, output_signature=batches.element_spec)


def mean_over_ranks(collectives: TensorCollectives, found: Mapping[str, float], records: int) -> dict[str, float]:
    """Average metrics over the records of all ranks, and count each record once. All ranks must call this function.

    Args:
        collectives: The collective operations of the ranks.
        found: This rank's metrics by name. Empty if this rank has no records.
        records: Number of records from which this rank's metrics were computed.

    Raises:
        DistributedError: no rank has records, or the names of the metrics are too long.
    """
    text = json.dumps(sorted(found)).encode() if records else b""
    if len(text) > _NAMES_BYTES:
        raise DistributedError(f"the metrics' names have {len(text):,} bytes, but evaluate() allows {_NAMES_BYTES:,}.")
    padded = np.frombuffer(text.ljust(_NAMES_BYTES, b"\0"), np.uint8).astype(np.int32)
    said = [bytes(row.astype(np.uint8)).rstrip(b"\0") for row in collectives.gather_array(padded)]
    first = next((row for row in said if row), None)
    if first is None:
        raise DistributedError("there are no records to evaluate on.")
    names: list[str] = json.loads(first)
    sums = np.array([float(found.get(name, 0.0)) * records for name in names] + [records], np.float64)
    [totals] = collectives.sum_arrays([sums])
    return dict(zip(names, (totals[:-1] / totals[-1]).tolist(), strict=True))
