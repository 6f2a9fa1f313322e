"""Each record counts exactly once per epoch in the training that survives, whatever joins, leaves or dies."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from container.distributed.core.epoch_sharding import Dealing

#: What may come after a step: nothing, ranks that come or leave in peace, or one that dies.
EVENTS = st.one_of(
    st.none(), st.tuples(st.just("resize"), st.integers(1, 5)), st.tuples(st.just("kill"), st.integers(1, 5))
)


@dataclasses.dataclass
class Training:
    """What the ranks have in common: where they are, and what their weights are made of."""

    epoch: int = 0
    position: int = 0
    trained: Counter[tuple[int, int]] = dataclasses.field(default_factory=Counter)


@settings(max_examples=100)
@given(
    records=st.integers(1, 60),
    batches=st.lists(st.integers(1, 25), min_size=1, max_size=3),
    size=st.integers(1, 5),
    commit_every=st.integers(1, 6),
    events=st.lists(EVENTS, max_size=40),
)
def test_each_record_counts_once(
    records: int, batches: list[int], size: int, commit_every: int, events: list[tuple[str, int] | None]
) -> None:
    epochs = 3
    state = Training()
    committed = copy.deepcopy(state)
    following = iter(events)
    meetings = 0
    while state.epoch < epochs:
        meetings += 1
        per_step = batches[meetings % len(batches)]  # scale_rate changes it with the size
        dealing = Dealing(records=records, position=state.position, size=size, per_step=per_step)
        assert dealing.steps > 0  # or the epoch's end would never come
        for step in range(dealing.steps):
            for rank in range(size):
                state.trained.update((state.epoch, record) for record in dealing.share(rank, step))
            state.position = dealing.after(step + 1)
            last = step + 1 == dealing.steps
            if not last and (step + 1) % commit_every == 0:
                committed = copy.deepcopy(state)
            event = next(following, None)
            if event is not None and event[0] == "kill":
                state = copy.deepcopy(committed)
            elif event is None or last:  # who leaves in peace does so after a look, and there is none at an epoch's end
                continue
            size = event[1]
            break
        else:
            assert state.position == records
            state.epoch, state.position = state.epoch + 1, 0
            committed = copy.deepcopy(state)
    assert state.trained == Counter({(epoch, record): 1 for epoch in range(epochs) for record in range(records)})


@given(
    records=st.integers(0, 60),
    position=st.integers(0, 60),
    size=st.integers(1, 5),
    per_step=st.integers(1, 25),
    partial=st.booleans(),
)
def test_a_step_has_each_of_its_records_once(
    records: int, position: int, size: int, per_step: int, partial: bool
) -> None:
    dealing = Dealing(records=records, position=position, size=size, per_step=per_step, partial=partial)
    dealt: list[int] = []
    for step in range(dealing.steps):
        shares = [list(dealing.share(rank, step)) for rank in range(size)]
        assert partial or sum(map(len, shares)) == per_step
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        dealt += sorted(record for share in shares for record in share)
        assert dealt[-1] + 1 == dealing.after(step + 1)
    assert dealt == list(range(position, position + len(dealt)))
    left = max(0, records - position) - len(dealt)
    assert left == 0 if partial else left < dealing.per_step


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
        shard = data.training_shard(
            remaining(make(), shuffle=records, seed=3, epoch=2, position=position),
            data.Options(parse=lambda record: (record, record), seed=3),
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
