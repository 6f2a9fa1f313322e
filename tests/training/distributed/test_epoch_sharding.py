"""The records of an elastic training's data are those that its ledger says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from container.distributed.core.epoch_sharding import Dealing


@pytest.mark.tensorflow
@settings(max_examples=6, deadline=None)
@given(
    records=st.integers(1, 40),
    share=st.floats(0, 1, exclude_max=True),
    size=st.integers(1, 4),
    per_step=st.integers(4, 16),
    known=st.booleans(),
)
@example(records=40, share=0.0, size=3, per_step=16, known=True)  # whatever else is drawn, uneven shares
@example(records=39, share=0.1, size=3, per_step=7, known=False)
def test_the_data_are_dealt_as_the_ledger_says(
    records: int, share: float, size: int, per_step: int, known: bool
) -> None:
    import numpy as np
    import tensorflow as tf

    from container.distributed.tensorflow import data
    from container.distributed.tensorflow.elastic import remaining

    def make() -> Any:
        found = tf.data.Dataset.range(records)
        return found if known else found.filter(lambda record: record >= 0)

    position = int(share * records)
    [order] = remaining(make(), shuffle=records, seed=3, epoch=2, position=0).batch(records)
    dealing = Dealing(records=records, position=position, size=size, per_step=per_step)
    weights_of: list[dict[int, float]] = [{} for _ in range(dealing.steps)]
    for rank in range(size):
        tf.random.set_seed(rank)  # as some scripts do, for example for dropout
        shard = data.training_shard(
            remaining(make(), shuffle=records, seed=3, epoch=2, position=position),
            data.BatchOptions(parse=lambda record: (record, record), seed=3),
            rank=rank,
            size=size,
            local_rank=0,
            local_size=1,
            batch_size=per_step // size,
            left_over=per_step % size,
        )
        steps = [
            [int(x) for x, weight in zip(x, weights[0] if weights else np.ones(len(x)), strict=True) if weight]
            for x, _, *weights in shard.as_numpy_iterator()
        ]
        assert steps == [[int(order[place]) for place in dealing.share(rank, step)] for step in range(dealing.steps)]
        for step, (x, _, *weights) in enumerate(shard.as_numpy_iterator()):
            found = weights[0] if weights else np.ones(len(x))
            # What a record counts for in the mean over the ranks, of the means over their batches.
            counts = [(int(record), weight / len(x) / size) for record, weight in zip(x, found, strict=True) if weight]
            weights_of[step].update(counts)
    for of_step in weights_of:
        np.testing.assert_allclose(list(of_step.values()), 1 / len(of_step), rtol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("holds", ["host", "rank"])
def test_data_of_which_each_rank_has_a_part_go_on_within_an_epoch(holds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    from container.distributed.tensorflow import data, padding

    asked: list[int | None] = []

    class Progress:
        def epoch(self, records: Any, shuffle: int | None) -> Any:
            asked.append(shuffle)
            return records

    monkeypatch.setattr(padding, "agreed", lambda records, agreement, **how: records)
    data.training_shard(
        tf.data.Dataset.range(8),
        data.BatchOptions(parse=lambda record: (record, record), holds=holds, shuffle=4),
        rank=0,
        size=2,
        local_rank=0,
        local_size=1,
        batch_size=2,
        agreement=lambda: None,
        progress=Progress(),
    )
    assert asked == [4]
