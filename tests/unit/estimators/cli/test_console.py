"""Tables of the command line."""

from __future__ import annotations

import time

import pytest

from estimators.cli import console
from estimators.job.text import columns_of

HEAD = ("NAME", "STATUS", "STRATEGY", "HOSTS", "CREATED", "TOOK")
ROWS = [
    ["tensorflow-training-2026-11-24-02-23-46-327", "Completed", "mpi", "2", "3 min ago", "4 min 05 s"],
    ["short", "Failed (MaxRuntimeExceeded)", "collective_all_reduce", "12", "2 d ago", "1.0 s"],
]


def shown(monkeypatch: pytest.MonkeyPatch, width: int | None, **options: object) -> str:
    monkeypatch.setattr(console, "terminal_width", lambda: width)
    return console.table(HEAD, ROWS, status_column=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (60, "NAME STATUS"),
        (80, "NAME STATUS"),
        (90, "NAME STATUS CREATED"),
        (100, "NAME STATUS CREATED TOOK"),
        (140, "NAME STATUS STRATEGY HOSTS CREATED TOOK"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns(monkeypatch: pytest.MonkeyPatch, width: int, kept: str) -> None:
    lines = shown(monkeypatch, width, optional=(3, 2, 5, 4)).splitlines()
    assert max(map(columns_of, lines)) <= width
    assert lines[0].split() == kept.split()
    assert "".join(line[:45].split(" ")[0] for line in lines[1:]).startswith(ROWS[0][0]), "no name is cut"


def test_a_long_name_is_divided_at_a_hyphen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "terminal_width", lambda: 60)
    name = "a-rather-long-name-of-a-training-job-with-many-words-in-2026"
    lines = console.table(("NAME", "STATUS"), [[name, "Completed"]]).splitlines()
    first, second = lines[1].split()[0], lines[2].strip()
    assert first.endswith("-") and first + second == name and max(map(len, lines)) <= 60


def test_wide_characters_and_empty_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "terminal_width", lambda: 60)
    text = console.table(("NAME", "WHAT"), [["任务" * 10, "a" * 50]])
    assert max(map(columns_of, text.splitlines())) <= 60
    assert text.count("任") == 10 and columns_of(text.splitlines()[1].split(" ")[0]) >= 12
    assert console.table(("NAME", "WHAT"), []).split() == ["NAME", "WHAT"]


def test_in_a_pipe_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, optional=(3, 2, 5, 4)).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["NAME", ROWS[0][0], ROWS[1][0]]
    assert "MaxRuntimeExceeded" in lines[2] and lines[1].endswith("4 min 05 s")


def test_sentences_are_wrapped_at_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "terminal_width", lambda: 60)
    text = console.table(("WHAT", "WHY"), [["a", "because of this and that, and " * 3]], paragraphs=True)
    assert max(map(len, text.splitlines())) <= 60
    assert " ".join(text.split()) == "WHAT WHY a " + ("because of this and that, and " * 3).strip()
    text = console.table(("NAME", "WHY"), [["a-name-of-28-characters-0001", "because " * 9]], paragraphs=True)
    assert text.splitlines()[1].startswith("a-name-of-28-characters-0001  because")


def test_states_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "coloured", lambda: True)
    text = shown(monkeypatch, 140)
    assert "\x1b[32mCompleted\x1b[0m" in text and "\x1b[31mFailed (MaxRuntimeExceeded)\x1b[0m" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "just now"),
        (61, "1 min ago"),
        (7300, "2 h ago"),
        (3 * 86_400, "3 d ago"),
        (40 * 86_400, r"20\d\d-\d\d-\d\d"),
    ],
)
def test_times_are_relative(seconds: float, text: str) -> None:
    import re

    assert re.fullmatch(text, console.ago(time.time() - seconds))
    assert console.ago(None) == "-"
