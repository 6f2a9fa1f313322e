"""Printed logs: prefixes, long lines, broken characters, progress bars on and off a terminal, colours, secrets."""

from __future__ import annotations

import io
import os

import pytest
from screens import screen

from container.contract.failures import Cause, Failure
from estimators.client.printing import LogPrinter, wants_colour, write_text
from estimators.job.errors import TrainingJobError
from estimators.job.text import fit_columns, fit_parts, padded, visible
from estimators.records.logs import LogLine


def lines(*pieces: bytes, rank: int = 0, start: int = 0, step: int = 1) -> list[LogLine]:
    return [LogLine(start + number * step, "algo-1", f"rank {rank}", 0, piece) for number, piece in enumerate(pieces)]


def shown(*batches: list[LogLine], printer: LogPrinter | None = None) -> str:
    printer = printer or LogPrinter(io.StringIO())
    for batch in batches:
        printer.print(batch)
    printer.finish()
    return printer.stream.getvalue()  # type: ignore[attr-defined]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 40 columns that has colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_every_line_has_its_prefix() -> None:
    batch = [
        LogLine(1, "algo-1", "rank 0", 0, b"a\n"),
        LogLine(2, "algo-2", "rank 11", 0, b"b\r\n"),
        LogLine(3, "algo-2", "ps", 0, b"\n"),
        LogLine(4, "algo-1", None, 0, b"c\n"),
    ]
    assert shown(batch) == "[algo-1:rank 0] a\n[algo-2:rank 11] b\n[algo-2:ps] \n[algo-1] c\n"


def test_a_line_in_parts_is_one_line() -> None:
    long = "é" * 200_000
    data = long.encode()
    assert shown(lines(data[:100_001], data[100_001:300_001], data[300_001:] + b"\n")) == f"[algo-1:rank 0] {long}\n"


def test_a_pipe_gets_the_text_of_a_bar_and_not_how_it_was_drawn() -> None:
    # As Keras 3 draws it: colours, then as many backspaces as the bar is long, then a carriage return.
    first = "\x1b[1m 1/23\x1b[0m \x1b[32m━\x1b[0m\x1b[37m━━\x1b[0m loss: 2.31"
    last = "\x1b[1m23/23\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m\x1b[0m loss: 0.05\n"
    pieces = first + "\b" * 20 + "\r", last
    text = shown(lines(*(piece.encode() for piece in pieces)))
    assert text == "[algo-1:rank 0]  1/23 ━━━ loss: 2.31\n[algo-1:rank 0] 23/23 ━━━ loss: 0.05\n"
    assert shown(lines(b"abc\b\bX\n")) == "[algo-1:rank 0] aXc\n"


def test_a_terminal_keeps_the_colours_of_lines(terminal: Terminal) -> None:
    assert "\x1b[32mgreen" in shown(lines(b"\x1b[32mgreen\x1b[0m\n"), printer=LogPrinter(terminal, colour=False))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("ascii", "+ x a | b ... 2 x 3 ?"), ("latin-1", "+ x a · b ... 2 × 3 ?"), ("utf-8", "✓ ✗ a · b … 2 × 3 日")],
)
def test_marks_stay_apart_where_the_encoding_lacks_them(encoding: str, text: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    write_text(stream, "✓ ✗ a · b … 2 × 3 日")
    assert raw.getvalue().decode(encoding) == text


def test_another_process_between_the_parts_begins_a_new_line() -> None:
    text = shown(lines(b"part"), lines(b"other\n", rank=1), lines(b" two\n"))
    assert text == "[algo-1:rank 0] part\n[algo-1:rank 1] other\n[algo-1:rank 0]  two\n"


def test_an_unterminated_last_line_is_ended() -> None:
    assert shown(lines(b"a\n", b"end")) == "[algo-1:rank 0] a\n[algo-1:rank 0] end\n"


def test_what_is_not_utf8_is_replaced() -> None:
    assert shown(lines(b"\xff ok \xc3\n")) == "[algo-1:rank 0] \ufffd ok \ufffd\n"


# --- progress bars ---


def test_off_a_terminal_each_state_is_a_line() -> None:
    assert shown(lines(b"\r", b"10%\r", b"20%\r", b"30%\n")) == (
        "[algo-1:rank 0] 10%\n[algo-1:rank 0] 20%\n[algo-1:rank 0] 30%\n"
    )


def test_off_a_terminal_a_fast_bar_is_thinned_and_its_last_state_shown() -> None:
    states = [b"%d/1000\r" % number for number in range(1000)]  # 10 seconds
    text = shown(lines(*states, step=10_000_000)).splitlines()
    assert 20 <= len(text) <= 35
    assert text[-1] == "[algo-1:rank 0] 999/1000"


def test_on_a_terminal_bars_stand_under_the_log(terminal: Terminal) -> None:
    printer = LogPrinter(terminal, colour=False)
    printer.print(lines(b"start\n", b"10%\r"))
    printer.print(lines(b"15%\r", rank=1))
    printer.print(lines(b"20% " + b"=" * 100 + b"\r"))
    assert screen(terminal.getvalue()) == [
        "[algo-1:rank 0] start",
        "[algo-1:rank 0] 20% ===================",
        "[algo-1:rank 1] 15%",
    ]
    assert max(map(len, screen(terminal.getvalue()))) < 40
    printer.print(lines(b"between\n", rank=1))
    printer.print(lines(b"100%\n"))
    assert screen(terminal.getvalue()) == ["[algo-1:rank 0] start", "[algo-1:rank 1] between", "[algo-1:rank 0] 100%"]
    printer.print(lines(b"left\r"))
    printer.finish()
    assert screen(terminal.getvalue())[-1] == "[algo-1:rank 0] left"


def test_a_line_stands_below_all_and_goes_at_the_end(terminal: Terminal) -> None:
    printer = LogPrinter(terminal, colour=False)
    printer.status("training · 1 s")
    printer.print(lines(b"start\n", b"10%\r"))
    printer.status("training · loss 0.25 · accuracy 0.9 · 2 s · about 3 s to go")
    cut = "training · loss 0.25 · accuracy 0.9"
    assert screen(terminal.getvalue()) == ["[algo-1:rank 0] start", "[algo-1:rank 0] 10%", cut]
    printer.print(lines(b"100%\n"))
    printer.status("")
    terminal.write("what a callback prints\n")
    printer.status("training · 3 s")
    terminal.write(" and a thread\n")
    printer.print(lines(b"more\n"))
    printer.finish()
    assert screen(terminal.getvalue()) == [
        "[algo-1:rank 0] start",
        "[algo-1:rank 0] 100%",
        "what a callback prints",
        "training · 3 s and a thread",
        "[algo-1:rank 0] more",
    ]


def test_columns_are_counted_not_characters() -> None:
    assert fit_columns("\x1b[31mabc\x1b[0mdef", 4) == "abcd"
    assert fit_columns("日本語", 5) == "日本"
    assert fit_columns("abc", 0) == ""
    rows = padded((("name", "n"), ("日本", "12")), right=True)
    assert ["  ".join(row) for row in rows] == ["name   n", "日本  12"]


# --- colours and secrets ---


def test_prefixes_are_coloured_on_a_terminal_only(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    printer = LogPrinter(terminal)
    printer.print([*lines(b"a\n"), *lines(b"b\n", rank=1)])
    first, second = terminal.getvalue().splitlines()
    assert first.startswith("\x1b[") and first.endswith("[algo-1:rank 0]\x1b[0m a")
    assert first.split("[algo")[0] != second.split("[algo")[0]
    assert "\x1b" not in shown(lines(b"a\n"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(terminal)


def test_secrets_are_masked() -> None:
    printer = LogPrinter(io.StringIO(), mask=lambda text: text.replace("hunter2", "***"))
    assert shown(lines(b"password hunter2\n", b"hunter2\r"), printer=printer) == (
        "[algo-1:rank 0] password ***\n[algo-1:rank 0] ***\n"
    )


def test_a_broken_pipe_is_told() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as stream:
        printer = LogPrinter(stream)
        with pytest.raises(BrokenPipeError):
            printer.print(lines(b"a\n"))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), write_end)


# --- what a terminal would obey ---

ORDERS = {
    "clear the screen": "\x1b[2J\x1b[H",
    "set the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "the same, ended otherwise": "\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "a title without an end": "\x1b]0;title",
    "a device's string": "\x1bPq#0\x1b\\",
    "another character set": "\x1b(0",
    "reset": "\x1bc",
    "cut short": "\x1b[",
    "eight bits": "\x9b2J\x9d",
    "back": "\b\b\b",
    "bell and null": "\x07\x00\x7f",
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_terminal_gets_no_orders_of_a_script(order: str) -> None:
    assert visible(order) == visible(order, colours=True) == ""
    assert visible(f"a\tb{order}") == "a\tb"
    assert visible(f"a{order}\nb", colours=True) == "a\nb"
    for printer in (LogPrinter(io.StringIO()), LogPrinter(Terminal(), colour=True)):
        text = shown(lines(f"before{order}\n".encode()), printer=printer)
        assert text in ("[algo-1:rank 0] before\n", "\x1b[36m[algo-1:rank 0]\x1b[0m before\n")


def test_backspaces_take_effect_on_terminals_too() -> None:
    bar = "1/10 [>...]" + "\b" * 11 + "2/10 [=>..]"
    assert visible(bar, colours=True) == visible(bar) == "2/10 [=>..]"
    assert visible("ab\ncd\b\b\b\b\bx") == "ab\nxd"


def test_looks_stay_where_there_are_colours_and_end_with_their_line() -> None:
    assert visible("\x1b[1;31mred\x1b[2K", colours=True) == "\x1b[1;31mred\x1b[0m"
    assert visible("\x1b[38:5:1mred\x1b[0m rest", colours=True) == "\x1b[38:5:1mred\x1b[0m rest"
    assert visible("\x1b[1;31mred\x1b[0m") == "red"


def test_a_failed_jobs_exception_and_table_give_no_orders_either() -> None:
    failure = Failure(cause=Cause.PROCESS, message="ValueError: \x1b[2Jx", traceback="a\n\x1b]52;c;eA==\x07b")
    error = TrainingJobError("job-1", failure)
    assert "\x1b" not in str(error) and "ValueError: x" in str(error) and str(error).endswith("a\nb")
    assert error.failure == failure


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (99, "training · epoch 3 of 10 · loss 0.25"),
        (30, "training · epoch 3 of 10"),
        (20, "training"),
        (5, "trai…"),
    ],
)
def test_a_line_that_is_too_long_loses_its_last_parts(columns: int, shown: str) -> None:
    assert fit_parts("training · epoch 3 of 10 · loss 0.25", columns) == shown
