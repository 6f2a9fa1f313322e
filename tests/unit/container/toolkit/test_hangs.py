"""What the output of a rank that hangs says: where it waits, and whether Horovod's warnings are all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import container
from container.toolkit import hangs

CODE = Path("/job/code")
PACKAGE = Path(container.__file__ or "").resolve().parent
SITE = "/venv/lib/python3.11/site-packages"
WARNING = (
    b"[2026-11-21 15:16:15. 76460: W /build/horovod/common/stall_inspector.cc:107] One or more tensors were submitted "
    b"to be reduced, gathered or broadcasted by subset of ranks and are waiting for more than 5 seconds. \n"
)


def dump(*frames: tuple[str, str]) -> str:
    """As faulthandler prints it, innermost frame first."""
    lines = [f'  File "{path}", line 7 in {function}' for path, function in frames]
    return "\n".join(["epoch 1", "Current thread 0x00007f (most recent call first):", *lines])


TRAIN = (f"{CODE}/train.py", "<module>")
FIT = (f"{SITE}/tf_keras/src/engine/training.py", "fit")
CALL = (f"{SITE}/tensorflow/python/eager/polymorphic_function/polymorphic_function.py", "_call")
EXECUTE = (f"{SITE}/tensorflow/python/eager/execute.py", "quick_execute")
JOIN = (f"{PACKAGE}/distributed/joining.py", "join")
FIND = ("<frozen importlib._bootstrap>", "_find_and_load")
GET_DATA = ("<frozen importlib._bootstrap_external>", "get_data")
TENSORFLOW = (f"{SITE}/tensorflow/__init__.py", "<module>")
KERAS = (f"{SITE}/tensorflow/python/keras/__init__.py", "<module>")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([(f"{SITE}/horovod/mpi_ops.py", "_allreduce"), TRAIN], "train.py:7 in <module> (waiting in _allreduce)"),
        ([EXECUTE, CALL, FIT, TRAIN], "train.py:7 in <module> (waiting inside a training step: model.fit)"),
        ([CALL, TRAIN], "train.py:7 in <module> (waiting inside a compiled step, a graph)"),
        # A callback of the user's: it is not the step that waits.
        ([(f"{CODE}/train.py", "on_epoch_end"), FIT, TRAIN], "train.py:7 in on_epoch_end"),
        # Our own joining.join, while TensorFlow is being imported.
        ([TENSORFLOW, FIND, JOIN, TRAIN], "train.py:7 in <module> (importing tensorflow)"),
        ([JOIN, TRAIN], "train.py:7 in <module>"),
        # A deep import: what the user wrote is beyond the frames that are shown.
        ([GET_DATA, KERAS, FIND], "importing tensorflow"),
        ([FIND], "importing modules"),
    ],
)
def test_where_a_rank_waits(frames: list[tuple[str, str]], place: str) -> None:
    assert hangs.waiting_in(dump(*frames), CODE) == place


def test_output_without_a_stack_says_nothing() -> None:
    assert hangs.waiting_in("epoch 1\n", CODE) is None


def test_horovods_warnings_are_no_progress_and_name_ranks_and_tensors() -> None:
    stalls = hangs.StallWarnings()
    assert not stalls.is_progress([WARNING, b"Missing ranks:\n", b"1: [loss, gradient ...]\n", b"3!: [loss]\n"])
    assert stalls.missing == {1: "loss, gradient ...", 3: "loss"}
    assert not stalls.is_progress([WARNING, b"Missing ranks:\n"], b"0: [loss]")
    assert stalls.missing == {1: "loss, gradient ...", 3: "loss"}, "until the new one has said who"
    assert not stalls.is_progress([b"0: [loss]\n"])
    assert stalls.missing == {0: "loss"}
    assert stalls.is_progress([b"step 9\n"])
    assert stalls.missing == {}


def test_a_warning_that_comes_in_pieces() -> None:
    stalls = hangs.StallWarnings()
    for end in range(1, len(WARNING)):
        assert not stalls.is_progress([], WARNING[:end])
    assert not stalls.is_progress([WARNING])


@pytest.mark.parametrize("text", [b"step 9", b"[====>   ]", b"[1/10] loss 3", b"0: [loss]", b"Missing ranks:"])
def test_whatever_else_is_printed_is_progress(text: bytes) -> None:
    assert hangs.StallWarnings().is_progress([text + b"\n"])
    assert hangs.StallWarnings().is_progress([text + b"\r"])
    assert hangs.StallWarnings().is_progress([], text)
