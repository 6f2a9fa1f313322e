"""Tracebacks found in printed output: those that real interpreters print."""

from __future__ import annotations

import builtins
import sys
import traceback
from typing import Any

import pytest

from container.toolkit import traceback_text
from container.toolkit.traceback_text import group_line, last_traceback, log_tail


def test_the_last_one_wins_and_later_output_is_left_out() -> None:
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: one'
    second = 'Traceback (most recent call last):\n  File "b.py", line 2, in <module>\n    g()\nKeyError: 2'
    assert last_traceback(f"{first}\n\nwent on\n{second}\n") == second
    later = "\n".join(f"epoch {i}" for i in range(500))
    assert last_traceback(f"{second}\n\n{later}") == second


def test_a_long_message_of_tensorflows_is_kept() -> None:
    start = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nOpError: Graph:'
    text = start + "\n\n" + "\n".join(f"Detected at node {i}" for i in range(100))
    assert "Detected at node 20" in str(last_traceback(text))


@pytest.mark.parametrize("text", ["", "\n", "all is well\n", b"\xff\xfe\n", "SyntaxError: said a log line\n"])
def test_there_is_none(text: str | bytes) -> None:
    assert last_traceback(text) is None


def raised(error: BaseException) -> str:
    """What the interpreter prints."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - any may be given
        return "".join(traceback.format_exception(caught))


def caught(error: Exception) -> Exception:
    """The exception with a traceback of its own."""
    try:
        raise error
    except Exception as found:  # noqa: BLE001 - any may be given
        return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no exception groups")
def test_an_exception_group_is_what_it_holds_in_one_line() -> None:
    group: Any = getattr(builtins, "ExceptionGroup")  # noqa: B009 - Python 3.10 has none
    inner = group("inner", [KeyError("two")])
    several = group("several", [caught(ValueError("one\nof two lines")), inner, OSError(2, "no")])
    text = raised(several)
    found = last_traceback(f"before\n{text}")
    assert found == text.rstrip()
    line = (
        "ExceptionGroup: several (3 sub-exceptions): ValueError: one; KeyError: 'two'; FileNotFoundError: [Errno 2] no"
    )
    assert group_line(text.splitlines()) == line
    assert group_line(raised(ValueError("alone")).splitlines()) is None


def test_what_tensorflow_says_when_it_is_imported_is_no_reason() -> None:
    starting = (
        "2026-11-26 01:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.\n"
        "2026-11-26 01:00:00.2: E external/local_xla/cuda_fft.cc:467] Unable to register cuFFT factory: Attempting to\n"
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1795652082.293454    4424 port.cc:153] oneDNN custom operations are on.\n"
    )
    assert log_tail(f"{starting}no data in /data\n{starting}") == "no data in /data"
    assert log_tail(starting) == starting.rstrip()


def test_log_tail() -> None:
    text = "".join(f"line {i}\n" for i in range(100)) + "\n10%\r50%\r100%\r\n\n\n"
    assert log_tail(text, lines=3) == "line 98\nline 99\n100%"
    assert len(log_tail(text).splitlines()) == 15
    assert log_tail(b"\xffa\n") == "\N{REPLACEMENT CHARACTER}a"
    assert log_tail("") == ""
    assert len(log_tail("x" * 5000)) == 1000


OURS = ("/site/container/", "/job/ml/code/run_train.py")
OWN = """\
Traceback (most recent call last):
  File "/job/ml/code/run_train.py", line 138, in main
    value = function()
            ^^^^^^^^^^
  File "/job/ml/code/models/net.py", line 5, in train
    cluster.fit(
        3)
  File "/site/container/distributed/core/training.py", line 7, in fit
    return 1 / 0
           ~~^~~
  File "/site/keras/training.py", line 9, in inner
    return 1 / 0
ZeroDivisionError: division by zero
  see /job/ml/code/run_train.py
"""


def test_frames_of_fleetfits_are_left_out_and_the_scripts_files_are_named_as_in_its_folder() -> None:
    told = traceback_text.users_own(OWN, code="/job/ml/code", ours=OURS)
    assert told.splitlines() == [
        "Traceback (most recent call last):",
        '  File "models/net.py", line 5, in train',
        "    cluster.fit(",
        "        3)",
        '  File "/site/keras/training.py", line 9, in inner',
        "    return 1 / 0",
        "ZeroDivisionError: division by zero",
        "  see /job/ml/code/run_train.py",
    ]


def test_a_fault_of_fleetfits_own_is_told_whole() -> None:
    alone = 'Traceback (most recent call last):\n  File "/site/container/x.py", line 1, in f\n    g()\nKeyError: 1\n'
    assert traceback_text.users_own(alone, code="/job/ml/code", ours=OURS) == alone


def test_members_of_a_group_are_named_alike() -> None:
    group = '  + Exception Group Traceback (most recent call last):\n  |   File "/c/a.py", line 3, in <module>\n'
    assert 'File "a.py", line 3' in traceback_text.users_own(group, code="/c", ours=())
