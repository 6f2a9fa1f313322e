"""Whether a training continues within an epoch whose records may have another order."""

from __future__ import annotations

import pytest

from container.checkpoint.errors import EpochBeginsAnew
from container.contract.errors import DistributedError
from container.distributed.tensorflow.progress import DataProgress


def progress(shuffle: int | None, *, insist: bool = True) -> DataProgress:
    return DataProgress([], batch_size=4, size=2, rank=0, seed=1, shuffle=shuffle, insist=insist)


def test_a_changed_shuffle_buffer_changes_the_order() -> None:
    within = progress(100).position(0, 3)
    assert progress(100).resume(within)
    with pytest.raises(DistributedError, match="of shuffle=100, but now shuffle=200"):
        progress(200).resume(within)
    with pytest.raises(EpochBeginsAnew, match="of shuffle=100, but now shuffle=None"):
        progress(None, insist=False).resume(within)
    assert progress(200).resume(progress(100).position(1, 0)), "no epoch was interrupted"
    del within["shuffle"]
    assert progress(200).resume(within), "an older checkpoint"
