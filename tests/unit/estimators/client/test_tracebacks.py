"""The traceback of which a job fails is told once; no other line is lost."""

from __future__ import annotations

from estimators.client.tracebacks import HELD_S, Tracebacks
from estimators.records.logs import LogLine

FRAMES = ["Traceback (most recent call last):", '  File "/ml/code/train.py", line 3, in <module>', "    load()"]
ERROR = "ValueError: no data"
CHAINED = [
    *FRAMES, "KeyError: 'a'", "", "During handling of the above exception, another exception occurred:", "",
    *FRAMES, ERROR,
]  # fmt: skip
TOLD = "\n".join([*FRAMES, ERROR])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(*texts: str, rank: int = 0, seconds: float = 0.0) -> list[LogLine]:
    return [LogLine(int(seconds * 1e9), f"algo-{rank + 1}", f"rank {rank}", 0, f"{text}\n".encode()) for text in texts]


def texts(found: object) -> list[str]:
    return [line.data.decode().rstrip("\n") for line in found]  # type: ignore[attr-defined]


def test_that_of_the_failure_is_left_out() -> None:
    held = Tracebacks()
    shown = texts(held.take([*lines("epoch 1"), *lines(*CHAINED), *lines("other", rank=1)]))
    assert shown == ["epoch 1", "other"]
    assert texts(held.rest(TOLD)) == ["KeyError: 'a'"]  # the failure's has the last one's frames only
    assert texts(held.take(lines(*FRAMES, ERROR.replace("data", "sesame")))) == []
    # Secrets are hidden in the failure.
    assert texts(held.rest(TOLD, lambda text: text.replace("sesame", "data"))) == []


def test_one_that_another_process_sent_is_left_out_with_its_introduction() -> None:
    held = Tracebacks()
    remote = ["multiprocessing.pool.RemoteTraceback: ", '"""', *FRAMES, ERROR, '"""', ""]
    chained = [*remote, "The above exception was the direct cause of the following exception:", "", *FRAMES, ERROR]
    assert texts(held.take([*lines("epoch 1"), *lines(*chained)])) == ["epoch 1"]
    assert texts(held.rest("\n".join(chained))) == []
    assert texts(held.take(lines(*chained))) == []
    assert texts(held.rest(TOLD.replace("no data", "all"))) == [ERROR, ERROR]


def test_members_of_a_group_are_left_out_or_told_without_frames() -> None:
    held = Tracebacks()
    group = [
        "  + Exception Group Traceback (most recent call last):", '  |   File "train.py", line 8, in main',
        "  |     raise ExceptionGroup(...)", "  | ExceptionGroup: wrong (1 sub-exception)",
        "  +-+---------------- 1 ----------------", "    | Traceback (most recent call last):",
        '    |   File "train.py", line 2, in bad', "    | ValueError: wrong row 0",
        "    +------------------------------------",
    ]  # fmt: skip
    assert texts(held.take(lines(*group))) == []
    assert texts(held.rest("\n".join(group))) == []
    assert texts(held.take(lines(*group))) == []
    assert texts(held.rest(TOLD)) == ["  | ExceptionGroup: wrong (1 sub-exception)", "    | ValueError: wrong row 0"]


def test_what_other_ranks_say_of_it_is_told_without_frames() -> None:
    held = Tracebacks()
    assert texts(held.take([*lines(*FRAMES, ERROR), *lines(*FRAMES, "OSError: peer is gone", "bye", rank=1)])) == []
    assert texts(held.rest(TOLD)) == ["OSError: peer is gone", "bye"]


def test_one_after_which_the_script_goes_on_is_shown_whole() -> None:
    held = Tracebacks(Clock())
    assert texts(held.take(lines(*FRAMES, ERROR, "right behind it"))) == []
    assert held.due == HELD_S
    assert texts(held.take(lines("later", seconds=1.0))) == [*FRAMES, ERROR, "right behind it", "later"]
    assert held.due is None


def test_one_of_a_rank_whose_job_goes_on_is_shown_after_a_while() -> None:
    clock = Clock()
    held = Tracebacks(clock)
    assert texts(held.take(lines(*FRAMES, ERROR))) == []
    clock.now = HELD_S
    assert texts(held.take(lines("other", rank=1, seconds=2.0))) == ["other", *FRAMES, ERROR]


def test_a_job_that_did_not_fail_of_it_shows_it() -> None:
    held = Tracebacks()
    assert texts(held.take(lines(*FRAMES, ERROR))) == []
    assert texts(held.rest()) == [*FRAMES, ERROR]
    assert texts(held.rest()) == []


def test_servers_and_launchers_are_not_held() -> None:
    words = LogLine(0, "algo-1", None, 0, b"Traceback (most recent call last):\n")
    assert list(Tracebacks().take([words])) == [words]
