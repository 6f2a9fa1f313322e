"""What the benchmarks conclude from numbers, and where they write it."""

from __future__ import annotations

import pytest

from benchmarks import harness, scale
from benchmarks.harness import Bar, Estimate


def test_the_interval_holds_the_median() -> None:
    estimate = harness.median_with_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert estimate.value == 3.0
    assert 1.0 <= estimate.low <= 3.0 <= estimate.high <= 100.0
    assert estimate == harness.median_with_interval([1.0, 2.0, 3.0, 4.0, 100.0])


@pytest.mark.parametrize(
    ("low", "value", "high", "at_most", "at_least"),
    [
        (0.8, 0.9, 0.95, "met", "missed"),
        (0.8, 0.9, 1.1, "met", "open"),
        (0.9, 1.1, 1.2, "open", "met"),
        (1.05, 1.1, 1.2, "missed", "met"),
        (1.0, 1.0, 1.0, "met", "met"),
    ],
)
def test_a_bar_is_missed_only_beyond_the_interval(
    low: float, value: float, high: float, at_most: str, at_least: str
) -> None:
    estimate = Estimate(value=value, low=low, high=high, count=10)
    assert Bar(limit=1.0).verdict(estimate) == at_most
    assert Bar(limit=1.0, at_least=True).verdict(estimate) == at_least


class Scripted(harness.Quiet):
    """Says of each round that counts what it is told to."""

    def __init__(self, *answers: bool) -> None:
        super().__init__(0.0)
        self.answers = list(answers)

    def wait(self, seconds: float = 0.0) -> None:
        """Not here."""

    def was_quiet(self) -> bool:
        """The next answer."""
        return self.answers.pop(0)


def test_alternating_turns_the_order_and_repeats_disturbed_rounds() -> None:
    calls: list[str] = []

    def way(name: str) -> harness.Numbers:
        calls.append(name)
        return {"n": float(len(calls))}

    ways = {"a": lambda: way("a"), "b": lambda: way("b")}
    values = harness.alternate(2, ways, Scripted(True, False, True), warm_up=1)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ba"
    assert values == {"a": [{"n": 3.0}, {"n": 8.0}], "b": [{"n": 4.0}, {"n": 7.0}]}


def test_a_way_that_fails_is_left_out_with_its_reason_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> dict[str, float]:
        raise RuntimeError("first line\nno | such thing")

    ways = {"a": lambda: {"n": 1.0}, "broken": breaks}
    reasons: dict[str, str] = {}
    values = harness.alternate(2, ways, Scripted(True, True), failures=reasons, show=lambda numbers: f"{numbers['n']}!")
    assert values == {"a": [{"n": 1.0}] * 2} and reasons == {"broken": "no / such thing"}
    said = capsys.readouterr().err
    assert "  broken failed: no / such thing\n" in said
    assert [line for line in said.splitlines() if "a:" in line] == [
        "  0/2, a: 1.0!",
        "  1/2, a: 1.0!",
        "  2/2, a: 1.0!",
    ]
    with pytest.raises(RuntimeError, match="such thing"):
        harness.alternate(1, ways, Scripted(True))
    assert harness.alternate(1, {"broken": breaks}, Scripted(), failures=reasons) == {}


def test_the_share_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([(100.0, 30.0), (110.0, 32.5)])  # of all cores together, and of others
    monkeypatch.setattr(harness.OthersShare, "_seconds", staticmethod(lambda: next(seconds)))
    assert harness.OthersShare()() == 0.25


def test_the_fit_of_a_growth() -> None:
    sizes = [128, 512, 1024]
    assert scale.growth(sizes, [float(size) for size in sizes]) == pytest.approx(1.0)
    assert scale.growth(sizes, [float(size**2) for size in sizes]) == pytest.approx(2.0)
    assert scale.growth(sizes, [3.0, 3.0, 3.0]) == pytest.approx(0.0)
