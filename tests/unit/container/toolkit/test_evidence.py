"""What is made of what the ranks tell of their part in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from container.toolkit import evidence
from container.toolkit.evidence import RankEvidence

PID = 100


def rank(*told: dict[str, Any], opened: bool = True, ended: bool = True, pid: int = PID, **closed: Any) -> RankEvidence:
    """A rank of one Python process; what it tells at its end is in ``closed``."""
    known = RankEvidence()
    if opened:
        known.add({"pid": pid, "opened": True})
    for values in told:
        known.add({"pid": pid, **values})
    if opened and ended:
        known.add({"pid": pid, "closed": True, "exchanges": {}, "optimizers": 0, "reduced": False, **closed})
    if ended:
        known.add({"ended": True})
    return known


HOROVOD = {"joined": "Horovod"}
TENSORFLOW = {"joined": "a cluster of TensorFlow's"}


def test_ranks_that_joined_nobody() -> None:
    text = str(evidence.verdict("mpi", [rank(), rank(pid=7)]))
    assert "under mpi none of the 2 ranks joined the others" in text
    for looked_for in ("hvd.init()", "mpi4py", "tf.distribute.Server", "distributed.init()", "sockets of their own"):
        assert looked_for in text
    assert "the script joined no other process" in str(evidence.verdict("parameter_server", [rank()]))


@pytest.mark.parametrize(
    "other",
    [
        rank({"joined": "MPI"}),
        rank({"unknown": "it started another program"}),
        rank(opened=False),  # not a Python program, or another interpreter
        rank({"pid": 8, "opened": True}),  # ended without a farewell: os._exit
    ],
    ids=["joined", "unknown", "not seen", "not told"],
)
def test_nothing_is_said_where_one_joined_or_is_not_known(other: RankEvidence) -> None:
    assert evidence.verdict("mpi", [rank(), other]) is None


def test_a_rank_that_was_cut_off_has_joined_nobody_by_then() -> None:
    assert evidence.verdict("parameter_server", [rank(), rank(ended=False), RankEvidence()]) is not None
    assert evidence.verdict("parameter_server", [rank(), rank({"joined": "a server"}, ended=False)]) is None
    assert evidence.verdict("parameter_server", [RankEvidence(), RankEvidence()]) is None


def test_what_one_of_several_processes_of_a_rank_did_counts() -> None:
    shell = rank({"pid": 2, "opened": True}, {"pid": 2, "joined": "MPI"}, {"pid": 2, "closed": True})
    assert shell.is_apart is False and shell.joined == ["MPI"]


def test_ranks_that_joined_and_exchanged_nothing() -> None:
    silent = [rank(HOROVOD, exchanges={"Horovod": 0}) for _ in range(2)]
    text = evidence.verdict("mpi", silent)
    assert text is not None and "joined each other (Horovod) and then exchanged nothing" in text
    # Once is enough: a script may reduce only at its end.
    assert evidence.verdict("mpi", [silent[0], rank(HOROVOD, exchanges={"Horovod": 1})]) is None
    mirrored = [rank(TENSORFLOW, exchanges={"TensorFlow": 0})] * 2
    assert "exchanged nothing" in str(evidence.verdict("collective_all_reduce", mirrored))


@pytest.mark.parametrize(
    "known",
    [
        rank({"joined": "MPI"}),  # nobody counts what mpi4py exchanges
        rank(HOROVOD, {"joined": "MPI"}, exchanges={"Horovod": 0}),
        rank(HOROVOD, exchanges={}),  # of another framework
        rank(HOROVOD, ended=False),
        rank(TENSORFLOW, exchanges={}),  # parameter servers
        rank(HOROVOD, {"unknown": "another version"}, exchanges={"Horovod": 0}),
    ],
)
def test_exchanges_that_nobody_counts(known: RankEvidence) -> None:
    assert known.is_mute is None
    assert evidence.verdict("mpi", [known, known]) is None


def test_optimizers_that_reduced_nothing() -> None:
    """Keras 3 does not call Horovod's, whatever else was exchanged."""
    idle = rank(HOROVOD, exchanges={"Horovod": 3}, optimizers=1, reduced=False, stepped=True)
    text = evidence.verdict("mpi", [idle, idle])
    assert text is not None and "DistributedOptimizer reduced no gradient" in text and "TF_USE_LEGACY_KERAS=1" in text
    evaluates = rank(HOROVOD, exchanges={"Horovod": 3}, optimizers=1, reduced=False)
    assert evidence.verdict("mpi", [evaluates, evaluates]) is None
    busy = rank(HOROVOD, exchanges={"Horovod": 3}, optimizers=2, reduced=True)
    assert evidence.verdict("mpi", [idle, busy]) is None


@pytest.mark.parametrize("told", [{"pid": "1", "opened": True}, {"joined": "MPI"}, {"pid": 1, "closed": True}])
def test_what_makes_no_sense_is_no_evidence(told: dict[str, Any]) -> None:
    known = RankEvidence()
    known.add(told)
    known.add({"ended": True})
    assert known.is_apart is None and known.joined == []
