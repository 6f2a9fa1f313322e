"""``discovery=function`` of an elastic strategy: the caller's process tells the supervisor which hosts there are."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from estimators.job.errors import ConfigurationError
from estimators.records.record import DISCOVERED

#: How often the function is called, in seconds.
EVERY_S = 1.0


def lines(answer: Any) -> str:
    """Return a function's answer as lines ``host`` or ``host:slots``.

    Args:
        answer: A mapping from names to slots, or names.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(answer, Mapping):
        return "".join(f"{name}:{int(slots)}\n" for name, slots in answer.items())
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise ConfigurationError(
            f"discovery=…: the function must return a list of host names, or a dict of host names and their slots; "
            f"got {answer!r}."
        )
    return "".join(f"{name}\n" for name in answer)


def follow(function: Callable[[], Any], record: Path, is_over: Callable[[], bool]) -> None:
    """Call the function until the job is over, from a thread, and leave what it says in the record.

    What it raises is warned of once; what was known stays.

    Args:
        function: The user's.
        record: The job's folder.
        is_over: Whether the job has ended.
    """

    def call() -> None:
        warned = ""
        last: str | None = None
        while not is_over():
            try:
                text = lines(function())
                if text != last:
                    new = record / f"{DISCOVERED}.new"
                    new.write_text(text, encoding="utf-8")
                    os.replace(new, record / DISCOVERED)
                    last = text
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything; the job goes on
                if repr(error) != warned:
                    warned = repr(error)
                    warnings.warn(f"discovery=… raised {error!r}. The job keeps its hosts.", stacklevel=1)
            time.sleep(EVERY_S)

    threading.Thread(target=call, daemon=True, name="fleetfit-discovery").start()
