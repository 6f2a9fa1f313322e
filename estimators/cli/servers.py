"""Share code of the commands that run servers: ``fleetfit serve``, ``fleetfit s3`` and ``fleetfit ui``."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from estimators.job.errors import UnsupportedError


def check_packages() -> None:
    """Check that the packages of the extra ``service`` are installed, which every server needs.

    Raises:
        UnsupportedError: a package is not installed.
    """
    from importlib.util import find_spec

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UnsupportedError(f"{name} is not installed, but is needed here: run `fleetfit install service`.")


@contextlib.contextmanager
def noted_signals() -> Iterator[threading.Event]:
    """Return a context in which SIGTERM and SIGINT only set an event, which is the context's value."""
    told = threading.Event()
    before = {number: signal.signal(number, lambda *_: told.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(told: threading.Event) -> None:
    """Wait until a signal sets the event."""
    while not told.wait(0.5):  # a signal that arrives just before the wait would not interrupt it
        pass
