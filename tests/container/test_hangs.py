"""What the output of a rank that hangs says: where it waits, and whether Horovod's warnings are all that there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import container
from container.system import processes
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


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (((f"{SITE}/horovod/mpi_ops.py", "_allreduce"), TRAIN), "train.py:7 in <module> (waiting in _allreduce)"),
        (
            (
                (f"{SITE}/tensorflow/python/eager/execute.py", "quick_execute"),
                (f"{SITE}/tensorflow/python/eager/polymorphic_function/polymorphic_function.py", "_call"),
                (f"{SITE}/tf_keras/src/engine/training.py", "fit"),
                TRAIN,
            ),
            "train.py:7 in <module> (waiting inside a training step: model.fit)",
        ),
        (
            ((f"{SITE}/tensorflow/python/eager/polymorphic_function/polymorphic_function.py", "_call"), TRAIN),
            "train.py:7 in <module> (waiting inside a compiled step, a graph)",
        ),
        # A callback of the user's: it is not the step that waits.
        (((f"{CODE}/train.py", "on_epoch_end"), (f"{SITE}/keras/training.py", "fit"), TRAIN),
         "train.py:7 in on_epoch_end"),
        # Our own joining.join, while TensorFlow is being imported.
        (
            (
                (f"{SITE}/tensorflow/__init__.py", "<module>"),
                ("<frozen importlib._bootstrap>", "_load_unlocked"),
                (f"{PACKAGE}/distributed/joining.py", "join"),
                TRAIN,
            ),
            "train.py:7 in <module> (importing tensorflow)",
        ),
        (((f"{PACKAGE}/distributed/joining.py", "join"), TRAIN), "train.py:7 in <module>"),
        # A deep import: what the user wrote is beyond the frames that are shown.
        (
            (
                ("<frozen importlib._bootstrap_external>", "get_data"),
                (f"{SITE}/tensorflow/python/keras/__init__.py", "<module>"),
                ("<frozen importlib._bootstrap>", "_find_and_load"),
            ),
            "importing tensorflow",
        ),
        ((("<frozen importlib._bootstrap>", "_find_and_load"),), "importing modules"),
    ],
)  # fmt: skip
def test_where_a_rank_waits(frames: tuple[tuple[str, str], ...], place: str) -> None:
    assert hangs.waiting_in(dump(*frames), CODE) == place


def test_output_without_a_stack_says_nothing() -> None:
    assert hangs.waiting_in("epoch 1\n", CODE) is None


def test_horovods_warnings_are_no_progress_and_name_ranks_and_tensors() -> None:
    stalls = hangs.StallWarnings()
    assert not stalls.is_progress([WARNING, b"Missing ranks:\n", b"1: [loss, gradient ...]\n", b"3!: [loss]\n"])
    assert stalls.missing == {1: "loss, gradient ...", 3: "loss"}
    assert not stalls.is_progress([WARNING, b"Missing ranks:\n"], b"0: [loss]")
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


def test_a_stopped_process_is_known() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not processes.is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert processes.is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        process.kill()
    assert not processes.is_stopped(process.pid)


#: A rank whose hook has registered what prints its stacks.
READY = f"import faulthandler, sys; faulthandler.register({hangs.STACK_SIGNAL}, file=2); "


@pytest.mark.parametrize(
    ("program", "asked", "place"),
    [
        (READY + "print(flush=True); input()", True, "train.py:7 in <module>"),
        (READY + "import os; os.execvp('sh', ['sh', '-c', 'echo; read x'])", False,
         "it has no stack to show: it is not Python (any more), but sh"),
        (READY + "import os; os.execvp('sh', ['sh', '-c', 'echo; cat; :'])", False,
         "it has no stack to show: it is not Python (any more), but sh, which runs cat"),
        ("print(flush=True); input()", False, "it has no stack to show: Python has ended there and waits for"),
    ],
)  # fmt: skip
def test_who_cannot_show_a_stack_is_not_harmed_and_is_named(program: str, asked: bool, place: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.readline()
        while "runs cat" in place and "cat" not in map(processes.name, processes.descendants(process.pid)):
            pass
        assert hangs.ask(process.pid) is asked
        os.kill(process.pid, hangs.STACK_SIGNAL)  # as if it had changed since we looked
        said = process.stderr.readline().decode() if asked else ""
        text = dump(TRAIN) if said else ""
        assert hangs.where(process.pid, None, text, CODE, asked=asked).startswith(place)
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait() == 0


def test_a_shells_python_is_asked() -> None:
    words = ["sh", "-c", 'trap "" TERM; "$0" -c "$1"; :', sys.executable, READY + "print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.readline()
        assert hangs.ask(process.pid)
        assert b"most recent call first" in process.stderr.readline()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait() == 0


def test_a_stopped_wrapper_is_named_beside_where_its_rank_is() -> None:
    with subprocess.Popen(["sleep", "60"]) as wrapper:
        wrapper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, wrapper.pid, os.WSTOPPED | os.WNOWAIT)
        place = hangs.where(os.getpid(), wrapper.pid, dump(TRAIN), CODE, asked=True)
        wrapper.kill()
    told = f"its wrapper (pid {wrapper.pid}) is stopped (SIGSTOP) and cannot tell of its end"
    assert place == f"train.py:7 in <module>; {told}"
