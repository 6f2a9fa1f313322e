"""Call the user's function ``discovery=`` of an elastic strategy, and pass its results to the supervisor."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from estimators.job.errors import ConfigurationError
from estimators.records.record import DISCOVERED

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

#: Interval between calls of the function, in seconds.
EVERY_S = 1.0


def lines(answer: Any) -> str:
    """Convert a discovery function's result to a text with one line per host: ``host`` or ``host:slots``.

    Args:
        answer: The result: a mapping from host names to numbers of slots, or an iterable of host names.

    Raises:
        ConfigurationError: the result is neither a mapping nor an iterable of names.
    """
    if isinstance(answer, Mapping):
        return "".join(f"{name}:{int(slots)}\n" for name, slots in answer.items())
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise ConfigurationError(
            f"discovery=…: the function must return a list of host names, or a dict of host names and their slots; "
            f"got {answer!r}."
        )
    return "".join(f"{name}\n" for name in answer)


def follow(function: Callable[[], Any], job: TrainingJob) -> None:
    """Start a thread that calls a discovery function until the job has ended, and writes the results to the record.

    The supervisor reads the results from the record. If the function raises an exception, the thread issues a warning,
    and the last result stays valid. If the next call raises the same exception, no further warning is issued.

    Args:
        function: The user's function.
        job: The job.
    """

    def call() -> None:
        warned = ""
        last: str | None = None
        while not job.status.is_terminal:
            try:
                text = lines(function())
                if text != last:
                    new = job.record.path / f"{DISCOVERED}.new"
                    new.write_text(text, encoding="utf-8")
                    os.replace(new, job.record.path / DISCOVERED)
                    last = text
            except Exception as error:  # noqa: BLE001 - the user's function can raise any exception; the job continues
                if repr(error) != warned:
                    warned = repr(error)
                    warnings.warn(f"discovery=… raised {error!r}. The job keeps its hosts.", stacklevel=1)
            time.sleep(EVERY_S)

    threading.Thread(target=call, daemon=True, name="fleetfit-discovery").start()
