"""Kills processes that save checkpoints, at random moments, and checks what they leave.

A program of its own, so that the processes it forks are small: ``python kills.py DIRECTORY KILLS SEED`` prints a
summary as JSON, and exits with 1 at the first thing that is wrong.

Each process restores, says so, and saves step after step; the toolkit's event pipe (a real one) tells the parent
which saves were completed. What must hold, whenever one is killed:

* what the next one restores is whole: every array has the values of one and the same step;
* its step is at least that of the last save that was completed before;
* every folder with a checkpoint's name verifies, the older ones too;
* no more than one folder is left staged, and the next writer clears it.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from container.checkpoint import Checkpointer
from container.checkpoint.errors import DamagedCheckpointError
from container.checkpoint.store import CheckpointStore
from container.contract import variables

ARRAYS = 6


class Wrong(AssertionError):
    """A guarantee was broken."""


def make_state(elements: int) -> dict[str, np.ndarray]:
    state = {f"array-{index}": np.zeros(elements + index, np.int64) for index in range(ARRAYS)}
    set_step(state, 0)
    return state


def set_step(state: dict[str, np.ndarray], step: int) -> None:
    for index, array in enumerate(state.values()):
        array[:] = step * 1000 + index


def step_of(state: dict[str, np.ndarray]) -> int:
    step = int(state["array-0"][0]) // 1000
    for index, (name, array) in enumerate(state.items()):
        if not (array == step * 1000 + index).all():
            raise Wrong(f"{name} is not of step {step}, as array-0 is")
    return step


def train(directory: Path, *, elements: int, keep: int, asynchronous: bool, pause_s: float) -> None:
    """Restore, and save step after step until killed."""
    state = make_state(elements)
    checkpointer = Checkpointer(
        directory, keep=keep, best="max score", asynchronous=asynchronous, pending=1 + keep % 2, lock_timeout=5
    )
    restored = checkpointer.restore(state)
    step = step_of(state)
    if restored is not None and restored.step != step:
        raise Wrong(f"the progress says step {restored.step}, the arrays {step}")
    if restored is not None and restored.skipped:
        raise Wrong(f"damaged: {restored.skipped}")
    os.write(1, f"restored {step}\n".encode())  # whole: print() writes it in pieces where streams are not buffered
    while True:
        step += 1
        set_step(state, step)
        checkpointer.save(state, step=step, epoch=step // 10, metrics={"score": step % 17}, metadata={"step": step})
        set_step(state, -7)  # a snapshot does not see this
        time.sleep(pause_s)


def run_until_killed(directory: Path, elements: int, chance: random.Random) -> tuple[int, int]:
    """One process.

    Returns:
        The step that it restored, or -1 if it did not come to that, and the last that it completed.
    """
    settings = {
        "elements": elements,
        "keep": chance.choice([1, 2, 3]),
        "asynchronous": chance.random() < 0.7,
        "pause_s": chance.choice([0, 0, 0.002]),
    }
    # Log-uniform: many early, within the restore and the first save, some after hundreds of saves. On a machine that is
    # busy, what counts from the start would all be before the restore.
    delay_s = 0.002 * 100 ** chance.random()
    from_restore = chance.random() < 0.5
    words_read, words_write = os.pipe()
    events_read, events_write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(words_read)
            os.close(events_read)
            os.dup2(words_write, 1)
            os.environ[variables.EVENTS] = f"{events_write}:{os.fstat(events_write).st_ino}"
            train(directory, **settings)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            print("wrong", repr(error).replace("\n", " "), flush=True)
        finally:
            os._exit(status)
    os.close(words_write)
    os.close(events_write)
    if from_restore:
        select.select([words_read], [], [], 30)
    deadline = time.monotonic() + delay_s
    collected = bytearray()
    os.set_blocking(events_read, False)
    while time.monotonic() < deadline:  # the pipe must not fill up
        _drain(events_read, collected)
        time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    _drain(events_read, collected)
    os.close(events_read)
    with open(words_read) as file:
        words = file.read().split("\n")
    restored = completed = -1
    for line in words:
        if line.startswith("wrong"):
            raise Wrong(line)
        if line.startswith("restored"):
            restored = int(line.split()[1])
    for line in collected.decode().splitlines():
        event = json.loads(line)
        if event["data"]["action"] == "saved":
            completed = max(completed, event["data"]["step"])
    return restored, completed


def _drain(fd: int, into: bytearray) -> None:
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            return
        into += data


def main(directory: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill so many processes, and on a busy machine more, until most moments were seen; returns what was.

    Raises:
        Wrong: a guarantee was broken.
    """
    # What a restore prints goes where the tests do not look.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    chance = random.Random(seed)
    elements = chance.choice([10, 2_000, 40_000])
    last = 0
    seen = {"kills": 0, "restored": 0, "staged": 0, "trash": 0}
    for number in range(5 * kills):
        if number >= kills and last >= 20 and seen["restored"] >= 10 and seen["staged"] >= 5:
            break
        restored, completed = run_until_killed(directory, elements, chance)
        seen["kills"] += 1
        if restored >= 0:
            seen["restored"] += 1
            if restored < last:
                raise Wrong(f"kill {number}: step {restored} was restored after step {last} had been completed")
        last = max(last, restored, completed)
        store = CheckpointStore(directory)
        for name in store.names():
            store.read(name)
        entries = os.listdir(directory) if directory.exists() else []
        staged = [entry for entry in entries if entry.startswith(".staging-")]
        if len(staged) > 1:
            raise Wrong(f"kill {number}: left behind: {staged}")
        seen["staged"] += len(staged)
        seen["trash"] += sum(entry.startswith(".trash-") for entry in entries)
    seen["steps"] = last
    return seen


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
    except (Wrong, DamagedCheckpointError) as wrong:
        print(wrong)
        sys.exit(1)
    except Exception:
        traceback.print_exc(file=sys.stdout)  # the other stream leads nowhere
        raise
