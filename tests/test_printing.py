"""Printed logs: prefixes, long lines, broken characters, progress bars on and off a terminal, colours, secrets."""

from __future__ import annotations

import io
import os
import re

import pytest

from estimators.logs import LogLine, LogPrinter
from estimators.printing import fit_columns, wants_colour


def lines(*pieces: bytes, rank: int = 0, start: int = 0, step: int = 1) -> list[LogLine]:
    return [LogLine(start + number * step, "algo-1", f"rank {rank}", 0, piece) for number, piece in enumerate(pieces)]


def shown(*batches: list[LogLine], printer: LogPrinter | None = None, finish: bool = True) -> str:
    stream = io.StringIO()
    printer = printer or LogPrinter(stream)
    for batch in batches:
        printer.print(batch)
    if finish:
        printer.finish()
    output = printer.stream
    assert isinstance(output, io.StringIO)
    return output.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(text: str) -> list[str]:
    """What a terminal would show: newline, carriage return, cursor up, clear to the end."""
    rows, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if token == "\n":
            row += 1
            if row == len(rows):
                rows.append("")
        elif token == "\r":
            pass
        elif token.endswith("A"):
            row -= int(token[2:-1])
        elif token.endswith("J"):
            rows[row:] = [""]
        elif token.startswith("\x1b"):
            pass
        else:
            rows[row] += token
    return rows[:-1] if rows[-1] == "" else rows


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


def test_another_process_between_the_parts_begins_a_new_line() -> None:
    text = shown(lines(b"part"), lines(b"other\n", rank=1), lines(b" two\n"))
    assert text == "[algo-1:rank 0] part\n[algo-1:rank 1] other\n[algo-1:rank 0]  two\n"


def test_an_unterminated_last_line_is_ended() -> None:
    assert shown(lines(b"a\n", b"end")) == "[algo-1:rank 0] a\n[algo-1:rank 0] end\n"


def test_what_is_not_utf8_is_replaced() -> None:
    assert shown(lines(b"\xff ok \xc3\n")) == "[algo-1:rank 0] \ufffd ok \ufffd\n"


def test_a_stream_that_lacks_characters_gets_others() -> None:
    raw = io.BytesIO()
    printer = LogPrinter(io.TextIOWrapper(raw, encoding="ascii"))
    printer.print(lines("é\n".encode()))
    assert raw.getvalue() == b"[algo-1:rank 0] ?\n"


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


def test_on_a_terminal_bars_stand_under_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
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
    assert screen(terminal.getvalue()) == [
        "[algo-1:rank 0] start",
        "[algo-1:rank 1] between",
        "[algo-1:rank 0] 100%",
    ]
    printer.print(lines(b"left\r"))
    printer.finish()
    assert screen(terminal.getvalue())[-1] == "[algo-1:rank 0] left"


def test_columns_are_counted_not_characters() -> None:
    assert fit_columns("\x1b[31mabc\x1b[0mdef", 4) == "abcd"
    assert fit_columns("日本語", 5) == "日本"
    assert fit_columns("abc", 0) == ""


# --- colours and secrets ---


def test_prefixes_are_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    printer = LogPrinter(terminal)
    printer.print([*lines(b"a\n"), *lines(b"b\n", rank=1)])
    first, second = terminal.getvalue().splitlines()
    assert first.startswith("\x1b[") and first.endswith("[algo-1:rank 0]\x1b[0m a")
    assert first.split("[algo")[0] != second.split("[algo")[0]
    assert "\x1b" not in shown(lines(b"a\n"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(terminal)


def test_secrets_are_masked() -> None:
    stream = io.StringIO()
    printer = LogPrinter(stream, mask=lambda text: text.replace("hunter2", "***"))
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), write_end)
