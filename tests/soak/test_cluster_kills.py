"""Fifty whole clusters killed with SIGKILL at random moments, each of which goes on where the last save was."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import clusters
import pytest
import resuming

pytestmark = [pytest.mark.soak, pytest.mark.tensorflow, pytest.mark.horovod]

#: How many of the clusters are killed in which part of their lives.
MOMENTS = {resuming.When.STARTING: 0.2, resuming.When.STEPPING: 0.3, resuming.When.SAVING: 0.5}


@pytest.mark.parametrize("seed", [23, "new"], indirect=True)
def test_whole_clusters_are_killed_and_resumed(
    make: clusters.Make, count: Callable[[int], int], record: Callable[..., None], tmp_path: Path, seed: int
) -> None:
    choice = random.Random(seed)
    killer = resuming.Killer(make, tmp_path / "checkpoints", choice)
    kills: list[resuming.Kill] = []
    problems: list[str] = []
    for number in range(count(50)):
        strategy = choice.choice(list(resuming.STRATEGIES))
        [when] = choice.choices(list(MOMENTS), list(MOMENTS.values()))
        try:
            kills.append(killer.kill(strategy, when))
        except Exception as error:  # noqa: BLE001 - put on record
            problems.append(f"kill {number} of seed {seed}, {strategy}, {when.value}: {error!r}")
            break  # what follows would only repeat it
        print(number, kills[-1], flush=True)
    record(
        "cluster-kills",
        seed=seed,
        kills=len(kills),
        strategies=dict(Counter(kill.strategy for kill in kills)),
        killed_while_training=sum(kill.trained for kill in kills),
        killed_while_starting=sum(not kill.trained for kill in kills),
        killed_within_a_save=sum(kill.staged for kill in kills),
        changes_of_strategy=sum(one.strategy != other.strategy for one, other in itertools.pairwise(kills)),
        last_step=kills[-1].saved if kills else 0,
        seconds_until_gone={
            "median": round(statistics.median(kill.seconds for kill in kills), 3) if kills else None,
            "worst": round(max(kill.seconds for kill in kills), 3) if kills else None,
        },
        problems=problems,
    )
    assert problems == []
