"""Failures as data and as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract.failures import REASON_LIMIT, Cause, Failure, describe_end, signal_name
from container.contract.texts import sentence

#: Up to 3,000 characters of any kind, without drawing each.
TEXT = st.builds(lambda text, times: text * times, st.text(max_size=30), st.integers(1, 100))
FAILURES = st.builds(
    Failure,
    cause=st.sampled_from(Cause),
    message=TEXT,
    host=st.none() | st.text(min_size=1, max_size=20),
    process=st.none() | st.text(min_size=1, max_size=20),
    rank=st.none() | st.integers(0, 100),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    traceback=st.none() | TEXT,
    log_tail=st.none() | TEXT,
    places=st.none() | TEXT,
    hints=st.lists(st.text(max_size=50), max_size=3).map(tuple),
)


@given(FAILURES)
def test_a_failure_reads_back_equal(failure: Failure) -> None:
    assert Failure.from_dict(failure.to_dict()) == failure


@given(FAILURES, st.integers(20, 2000))
def test_the_reason_fits_and_keeps_the_end(failure: Failure, limit: int) -> None:
    reason = failure.reason(limit)
    assert len(reason) <= limit
    assert len(failure.reason()) <= REASON_LIMIT
    assert reason.startswith(sentence(failure.summary())[:limit])


def test_the_middle_of_a_long_traceback_is_what_is_cut() -> None:
    failure = Failure(
        cause=Cause.PROCESS,
        message="exited with code 1",
        host="algo-2",
        process="rank 3",
        traceback="Traceback (most recent call last):\n" + "  frame\n" * 1000 + "ValueError: no data",
    )
    reason = failure.reason()
    assert reason.startswith("algo-2, rank 3: exited with code 1.\n\n…")
    assert reason.endswith("ValueError: no data")


def test_unknown_members_and_missing_ones_of_another_version() -> None:
    assert Failure.from_dict({"message": "x", "colour": "red"}) == Failure(cause=Cause.INTERNAL, message="x")


def test_ends_are_told_in_words() -> None:
    assert describe_end(3, None) == "exited with code 3"
    assert describe_end(None, 9) == "was killed by SIGKILL"
    assert describe_end(None, 64) == "was killed by SIGRTMAX"
    assert signal_name(200) == "signal 200"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exited with code 3", "exited with code 3."),
        ("no such file..", "no such file."),
        ("no such file.", "no such file."),
        ("and so on...", "and so on..."),
        ("what is it?", "what is it?"),
        ("(exited with code 1)", "(exited with code 1)."),
        ("", ""),
    ],
)
def test_a_reason_ends_in_one_full_stop(text: str, expected: str) -> None:
    assert sentence(text) == expected
