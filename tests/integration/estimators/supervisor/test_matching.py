"""The search for metrics: in another process, whatever the regexes and the lines are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from container.system.loop import Loop, SelectorLoop
from estimators.job.metrics import Line, MetricDefinition
from estimators.supervisor import matching
from estimators.supervisor.matching import Matching

CATASTROPHIC = r"(?:a+)+$([0-9])"
LOSS = MetricDefinition("loss", "loss: ([0-9.]+)")
SLOW = MetricDefinition("slow", CATASTROPHIC)


class Searching:
    """A search whose lines, finds and warnings are kept."""

    def __init__(self, loop: Loop, *definitions: MetricDefinition) -> None:
        self.loop = loop
        self.protected: set[int] = set()
        self.found: list[tuple[str, str, str]] = []
        self.warnings: list[str] = []
        self.matching = Matching(
            self.loop,
            definitions,
            protected=self.protected,
            found=lambda line, definition, caught: self.found.append((line.host, definition.name, caught.text)),
            done=lambda: None,
            warn=self.warnings.append,
        )

    def search(self, *texts: str) -> None:
        for text in texts:
            self.matching.search(Line(text, "algo-1", 0, 1, 0))

    def until(self, condition: Callable[[], object]) -> None:
        """Drive the loop, which is never held up for long."""
        until(condition, between=lambda: self.loop.run_once(1.0))


@pytest.fixture
def searching(loop: Loop) -> Iterator[Callable[..., Searching]]:
    made: list[Searching] = []

    def make(*definitions: MetricDefinition) -> Searching:
        made.append(Searching(loop, *definitions))
        return made[-1]

    wakeup = signal.set_wakeup_fd(-1)
    handler = signal.getsignal(signal.SIGCHLD)
    yield make
    for each in made:
        each.matching.finish(0.0)
        each.loop.reap()
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, handler)


def test_lines_are_searched_in_their_order_for_every_metric(searching: Callable[..., Searching]) -> None:
    search = searching(LOSS, MetricDefinition("epoch", "epoch ([0-9]+)"), MetricDefinition("never", "x(=[0-9])?$"))
    search.search("epoch 1 loss: 2.5", "nothing", "loss: 2é", "x", "loss: " + "1" * 500)
    search.until(lambda: len(search.found) >= 4)
    assert [item[1:] for item in search.found[:3]] == [("loss", "2.5"), ("epoch", "1"), ("loss", "2")]
    assert search.found[3][2] == "1" * 400 and len(search.found) == 4
    assert len(search.protected) == 1
    search.matching.finish(60.0)
    assert not search.warnings and not search.protected


def test_a_regex_that_takes_for_ever_holds_up_neither_the_loop_nor_other_metrics(
    searching: Callable[..., Searching], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_CPU_SECONDS", 0.2)
    monkeypatch.setattr(matching, "_has_re2", lambda: False)
    search = searching(SLOW, LOSS)
    ticks: list[float] = []
    search.loop.call_later(0.0, lambda: ticks.append(time.monotonic()))
    search.search("loss: 1", "a" * 64 + "!")
    search.until(lambda: search.found)
    assert ticks and [item[1] for item in search.found] == ["loss"]
    assert "metric 'slow'" in search.warnings[0] and CATASTROPHIC in search.warnings[0]
    assert "on some lines" in search.warnings[0] and "fleetfit install re2" in search.warnings[0]
    search.search("a" * 64 + "!", "loss: 2")
    search.until(lambda: len(search.found) == 2)
    assert len(search.warnings) == 2 and "is not searched for any more" in search.warnings[1]
    search.search("a" * 64 + "!", "loss: 3")
    search.matching.finish(60.0)
    assert [item[2] for item in search.found] == ["1", "2", "3"] and len(search.warnings) == 2


def test_re2_takes_over_where_it_is_installed(
    searching: Callable[..., Searching], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed")
    monkeypatch.setattr(matching, "_CPU_SECONDS", 0.2)
    search = searching(MetricDefinition("slow", r"^(?:a+)+([0-9]?)$"))
    search.search("a" * 64 + "!", "aaaa7")
    search.until(lambda: search.found)
    assert search.found == [("algo-1", "slow", "7")] and not search.warnings


def test_a_search_that_cannot_be_ended_in_time_is_given_up_at_the_end(searching: Callable[..., Searching]) -> None:
    search = searching(SLOW)
    search.search("a" * 64 + "!", "a")
    (began, _) = time.monotonic(), search.matching.finish(0.3)
    assert time.monotonic() - began < 30
    assert not search.protected and "2 lines were not searched" in search.warnings[0]


def test_a_killed_process_is_started_again(searching: Callable[..., Searching]) -> None:
    search = searching(LOSS)
    search.search("loss: 1")
    search.until(lambda: search.found)
    os.kill(next(iter(search.protected)), signal.SIGKILL)
    search.until(lambda: not search.protected)
    search.search("loss: 2")
    search.until(lambda: len(search.found) == 2)
    assert not search.warnings


def test_many_lines_wait_in_bounded_memory_and_none_is_lost(
    searching: Callable[..., Searching], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_EASY_SIZE", 1 << 20)
    monkeypatch.setattr(matching, "_TURN_SECONDS", 60.0)  # how long it takes is no matter here
    search = searching(LOSS)
    most = 0
    for number in range(20_000):
        search.search(f"loss: {number}")
        most = max(most, search.matching._size)
    search.matching.finish(60.0)
    assert [item[2] for item in search.found] == [str(number) for number in range(20_000)]
    assert most < 2 << 20


def test_the_process_ends_with_the_supervisor(searching: Callable[..., Searching]) -> None:
    """Also in the middle of a search: it cannot read that its input has ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            search = Searching(SelectorLoop(), SLOW)
            search.search("a" * 64)
            search.loop.run_once(1.0)
            os.write(write, str(next(iter(search.protected))).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    os.waitpid(child, 0)
    pid = int(os.read(read, 100))
    os.close(read)
    until(lambda: not Path(f"/proc/{pid}/stat").exists() or b") Z" in Path(f"/proc/{pid}/stat").read_bytes())
