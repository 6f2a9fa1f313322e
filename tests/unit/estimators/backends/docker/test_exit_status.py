"""What a container's end says of the cause, and the tracebacks of images without our toolkit."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from estimators.backends.docker.engine import ContainerEnd
from estimators.backends.docker.exit_status import end_failure, last_traceback

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ValueError: no data"""


def test_the_last_traceback_of_what_an_image_printed() -> None:
    assert last_traceback("nothing of the kind") is None
    assert last_traceback(f"a\n{TRACEBACK}\nthe toolkit says more\n") == TRACEBACK
    assert last_traceback(TRACEBACK.replace("no data", "first") + f"\nretrying\n{TRACEBACK}\n") == TRACEBACK
    chained = f"""Traceback (most recent call last):
  File "train.py", line 1, in <module>
KeyError: 'x'

The above exception was the direct cause of the following exception:

{TRACEBACK}"""
    assert last_traceback(f"more\n{chained}\nExitCode 1") == chained
    assert last_traceback("Traceback (most recent call last):\n  File") is None, "it was cut off"
    torn = TRACEBACK.replace("    step()", "a line of standard output\n    step()")
    assert last_traceback(f"a\n{torn}\nthe toolkit says more\n") == torn
    for place in range(1, 4):  # and the blanks of what it came before
        lines = TRACEBACK.splitlines()
        blanks = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines[place:] = [f"{blanks}of 2 hosts 'algo-1' reads", lines[place].lstrip(), *lines[place + 1 :]]
        assert last_traceback("\n".join([*lines, "2026 the toolkit", "Command"])) == "\n".join(lines)
    more = f"{TRACEBACK}\n  more of its message\n2026 the toolkit"
    assert last_traceback(more) == TRACEBACK
    lost = f"{TRACEBACK.rpartition(chr(10))[0]}\nsomething else\n"
    assert last_traceback(lost) is None, "what it ends with is no exception's name"
    local = TRACEBACK.replace("ValueError", "__main__.main.<locals>.Bad")
    assert last_traceback(f"{local}\nERROR: training failed") == local
    epochs = TRACEBACK.replace("ValueError", "Epoch 3 of 5\nloss: 0.31\nValueError")
    assert last_traceback(epochs) == epochs, "lines of standard output came between"


@given(st.data())
def test_a_traceback_that_was_read_in_pieces_is_still_one(data: st.DataObject) -> None:
    """As ``sagemaker-training`` prints it on: each piece that it reads without the blanks around it."""
    written = (
        TRACEBACK.replace("\n    step", "\n    |step").replace("File", "|File").replace("()\n", "()|\n|    |^|^|^^|\n|")
    )
    written = written.replace("ValueError: ", "|ValueError|: |")
    pieces, said = written.split("|"), ""
    cuts = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))
    for piece, cut in zip(pieces, cuts, strict=True):
        said += piece + ("\0" if cut else "")
    printed = "".join(chunk.strip() + "\n" for chunk in said.split("\0"))
    found = last_traceback(f"epoch 1\n{printed}\n2026 the toolkit")
    assert found is not None and found.splitlines()[-1] == "ValueError: no data"


def test_why_an_image_of_others_failed() -> None:
    ended = ContainerEnd(exit_code=1)
    failure = end_failure("algo-1", ended, f"x\n{TRACEBACK}\n".encode(), toolkit=False, said="AlgorithmError")
    assert failure is not None and failure.message == "ValueError: no data" and failure.traceback == TRACEBACK
    failure = end_failure("algo-1", ended, b"words", toolkit=False, said="the learning rate is negative")
    assert failure is not None and failure.log_tail == "words"
    assert failure.message == "the container exited with code 1: the learning rate is negative"
    failure = end_failure("algo-1", ContainerEnd(exit_code=3), b"no data\n", toolkit=False)
    assert failure is not None and failure.exit_code == 3 and failure.log_tail == "no data"


def test_a_traceback_that_comes_behind_half_a_line_is_found() -> None:
    torn = TRACEBACK.replace("last):\n", "last):\n is told so\n")
    said = "2026-11-22 18:52:03,291 sagemaker-training-toolkit ERROR    Reporting training FAILURE"
    assert last_traceback(f"of two hosts\nreads ['a']{torn}\n{said}\n") == torn
