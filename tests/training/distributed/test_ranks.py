"""Both synchronous strategies, with both Kerases: what ``checks.py`` checks, on two ranks, and on one."""

from __future__ import annotations

import json
from pathlib import Path

import launching
import pytest

pytestmark = pytest.mark.tensorflow

#: How many checks there are at least; see that none is skipped by mistake.
CHECKS = 20


#: Reads the whole model that rank 0 has saved, where there is nothing of ours.
READS = """
import sys
sys.modules["container"] = None
import {flavour} as keras
model = keras.models.load_model(sys.argv[1])
assert type(model.optimizer) is keras.optimizers.Adam, type(model.optimizer)
assert int(model.optimizer.iterations) > 0
"""


def environment(flavour: str) -> dict[str, str]:
    """What chooses that Keras."""
    return {"TF_USE_LEGACY_KERAS": "1" if flavour == "tf_keras" else "0"}


def checked(ended: launching.Ended, *ranks: int) -> None:
    assert ended.code == 0, ended.text
    for rank in ranks:
        assert f"rank {rank}: all passed" in ended.text, ended.text
    if 0 in ranks:
        assert sum(line.startswith("check_") for line in ended.text.splitlines()) >= CHECKS, ended.text


def saved_model_is_read(flavour: str, folder: Path) -> None:
    reads = ["-c", READS.format(flavour=flavour), str(folder / "whole.keras")]
    ended = launching.alone(reads, **environment(flavour))
    assert ended.code == 0, ended.text


@launching.needs_horovod
@pytest.mark.horovod
@pytest.mark.parametrize("flavour", ["tf_keras", pytest.param("keras", marks=pytest.mark.soak)])
def test_horovod(flavour: str, tmp_path: Path) -> None:
    checked(launching.mpirun(2, [str(launching.CHECKS), flavour, str(tmp_path)], **environment(flavour)), 0, 1)
    saved_model_is_read(flavour, tmp_path)


@pytest.mark.parametrize("flavour", [pytest.param("tf_keras", marks=pytest.mark.soak), "keras"])
def test_collective(flavour: str, tmp_path: Path) -> None:
    ranks = launching.collective(2, [str(launching.CHECKS), flavour, str(tmp_path)], **environment(flavour))
    for rank, ended in enumerate(ranks):
        checked(ended, rank)


@pytest.mark.soak
def test_one_process(tmp_path: Path) -> None:
    checked(launching.alone([str(launching.CHECKS), "tf_keras", str(tmp_path)], **environment("tf_keras")), 0)
    saved_model_is_read("tf_keras", tmp_path)


def test_who_did_not_come_is_named() -> None:
    """Rank 0 alone, of two."""
    with launching.reserved_ports(2) as (own, other):
        addresses = [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]
        ended = launching.alone(
            ["-c", "from container import distributed; distributed.init(timeout=2)"],
            TF_CONFIG=json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}),
        )
    assert ended.code == 1
    assert f"no answer within 2 s from rank 1 ({addresses[1]})" in ended.text


def test_without_horovod_the_remedy_is_named() -> None:
    script = (
        "import sys; sys.modules['horovod'] = None\n"
        "from container import distributed\n"
        "try: distributed.init()\n"
        "except distributed.DistributedError as error: print(error)\n"
    )
    ended = launching.alone(["-c", script], OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert "rank 1 of 2" in ended.text and "fleetfit install horovod" in ended.text
