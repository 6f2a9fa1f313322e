"""A training that is killed within an epoch goes on with the records that are left."""

from __future__ import annotations

import itertools
from pathlib import Path

import launching
import pytest
from feeding import agent, write_objects

SCRIPT = Path(__file__).with_name("resuming.py")

RECORDS = 33
STEPS = 7  # of an epoch, in batches of 5


@pytest.mark.tensorflow
@pytest.mark.parametrize(("shuffle", "legacy"), [pytest.param(0, "1", marks=pytest.mark.soak), (100, "0")])
def test_each_remaining_record_is_seen_once(tmp_path: Path, shuffle: int, legacy: str) -> None:
    write_objects(tmp_path / "data", [20, 13])
    channels = {"train": {"uri": str(tmp_path / "data"), "shuffle_seed": 5}}
    steps: list[list[int]] = []
    for kill in (STEPS + 3, 2, 0):  # in the second epoch; in its rest; never
        out = tmp_path / f"out-{kill}"
        with agent(tmp_path / "ml", channels):
            done = launching.alone(
                [str(SCRIPT), str(tmp_path / "ml"), str(out), str(kill), str(shuffle)], TF_USE_LEGACY_KERAS=legacy
            )
        assert done.code == (-9 if kill else 0), done.text
        found = [[int(value) for value in line.split()[2:]] for line in out.read_text().splitlines()]
        # A checkpoint holds what was finished when the last step began: that step comes again.
        steps += found[:-1] if kill else found
    assert len(steps) == 3 * STEPS
    epochs = [list(itertools.chain(*steps[begin : begin + STEPS])) for begin in range(0, 3 * STEPS, STEPS)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(RECORDS))
    assert epochs[0] != epochs[1] != epochs[2]
