"""Tables of numbers: whole, whatever the width."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from estimators.job.text import columns_of
from estimators.results import tables

HEAD = ["", "hosts × processes", "runs", "samples/s", "loss", "step, median", "peak memory"]
ROWS = [
    [name, "2 × 1", "3", "7,758 (7,700 – 7,800)", "0.123", "12.3 ms (11 – 14)", "1.5 GB"]
    for name in ("ParameterServer(2 servers)", "mpi", "collective all reduce", "elastic")
]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_fits_the_terminal_and_no_number_is_cut(width: int) -> None:
    text = tables.numbers(HEAD, ROWS, width)
    assert max(map(columns_of, text.splitlines())) <= width
    for row in ROWS:
        assert all(cell in text for cell in row)
    assert len(re.findall(r"7,758 \(7,700 – 7,800\)", text)) == len(ROWS)


def test_in_a_pipe_a_table_has_a_line_for_each_row() -> None:
    head, rule, *rows = tables.numbers(HEAD, ROWS).splitlines()
    assert head.split() == " ".join(HEAD).split() and set(rule) == {"─"}
    assert [row.split()[0] for row in rows] == [row[0].split()[0] for row in ROWS]


def test_paragraphs_are_wrapped_at_words() -> None:
    text = "word " * 40
    lines = tables.paragraphs([text], 60, indent="  ")
    assert len(lines) > 1 and all(
        (len(line) <= 60 and line.startswith("  word")) or line.startswith("    word") for line in lines
    )
    assert tables.paragraphs([text], None) == [text]


def test_an_object_that_can_only_be_written_to_has_no_width() -> None:
    assert tables.terminal_width(SimpleNamespace(write=len)) is None  # type: ignore[arg-type]
    closed = io.StringIO()
    closed.close()
    assert tables.terminal_width(closed) is None


def test_prose_keeps_code_paths_and_commands_whole() -> None:
    path = "/a/folder/with-a-name/" + "x" * 60
    code = "    code = that(is, long) + " + "a" * 60
    text = f"- the file {path} is missing: run `fleetfit clean --free 5G --yes --dry-run`\n{code}"
    assert tables.prose(text, None) == text
    assert tables.prose(text, 50).split("\n") == [
        "- the file", f"  {path}", "  is missing: run", "  `fleetfit clean --free 5G --yes --dry-run`", code,
    ]  # fmt: skip


def test_a_title_that_is_wider_than_the_terminal_is_wrapped_above_its_table() -> None:
    name = "collective_all_reduce 2 × 1, kerasjob-2026-11-27-16-57-43-767"
    text = tables.numbers(["", "hosts", "loss"], [[name, "2 × 1", "0.25"], ["mpi", "2 × 1", "0.5"]], 44)
    assert max(map(len, text.splitlines())) <= 44 and text.startswith("collective_all_reduce 2 × 1,\n")
