"""What the output of a rank that hangs says: where it waits, and whether Horovod's warnings are all that there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from container.system import processes
from container.toolkit import hangs

CODE = Path("/job/code")


def dump(*frames: tuple[str, str]) -> str:
    """As faulthandler prints it, innermost frame first."""
    lines = [f'  File "{path}", line 7 in {function}' for path, function in frames]
    return "\n".join(["epoch 1", "Current thread 0x00007f (most recent call first):", *lines])


TRAIN = (f"{CODE}/train.py", "<module>")


#: A rank whose hook has registered what prints its stacks.
READY = f"import faulthandler, sys; faulthandler.register({hangs.STACK_SIGNAL}, file=2); "


@pytest.mark.parametrize(
    ("program", "asked", "place"),
    [
        (READY + "print(flush=True); input()", True, "train.py:7 in <module>"),
        (READY + "import os; os.execvp('sh', ['sh', '-c', 'echo; read x'])", False,
         "it has no stack to show: the process is not Python but sh"),
        (READY + "import os; os.execvp('sh', ['sh', '-c', 'echo; cat; :'])", False,
         "it has no stack to show: the process is not Python but sh, which runs cat"),
        ("print(flush=True); input()", False, "it has no stack to show. Either Python has already shut down in"),
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
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as wrapper:
        assert not processes.is_stopped(wrapper.pid)
        wrapper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, wrapper.pid, os.WSTOPPED | os.WNOWAIT)
        assert processes.is_stopped(wrapper.pid)
        place = hangs.where(os.getpid(), wrapper.pid, dump(TRAIN), CODE, asked=True)
        wrapper.kill()
    assert not processes.is_stopped(wrapper.pid)
    told = f"the process that started it (pid {wrapper.pid}) is stopped (SIGSTOP) and cannot report the rank's end"
    assert place == f"train.py:7 in <module>; {told}"
