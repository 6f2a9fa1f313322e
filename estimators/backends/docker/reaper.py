"""Removes a job's containers and network when its supervisor is over, however that came about.

    python reaper.py VALUE

Containers are the engine's children, not the supervisor's: a supervisor that was killed would leave them running. This
process listens at the socket that is its standard input. A supervisor that connects is answered by a byte, sends its
:class:`.reapers.Duty` as a line, and at its end ``done`` (nothing is being made on the engine any more), or ``keep``
and seconds. When the connection ends, everything with the duty's label is removed from the engine, unless that is kept:
then the next supervisor may connect for so long. An empty line stands for the duty of the supervisor before. VALUE is
the label's value, by which the process is found.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a job that starts wants the cores for itself: the rest is imported at the end
    from estimators.backends.docker.engine import Engine

#: The engine may be in the middle of making something that its list does not show yet: nothing may have been found for
#: so long, in seconds.
_QUIET = 1.0
#: When it gives up, in seconds. What is left then, `fleetfit clean` finds.
_DEADLINE = 60.0


def main(listener: socket.socket) -> int:
    """Serve one supervisor after another that connects, then remove everything.

    Returns:
        0, or 1 when something is left.
    """
    until = time.monotonic() + _DEADLINE
    duty: dict[str, Any] = {}
    words = b""
    with contextlib.suppress(TimeoutError):
        while True:
            listener.settimeout(max(0.01, until - time.monotonic()))
            connection, _ = listener.accept()
            said = _hear(connection)
            first, _, words = said.partition(b"\n")
            duty = json.loads(first) if first else duty
            if not said or not duty:
                continue  # somebody has asked whether the containers are used, or came before they were made
            if not words.startswith(b"keep "):
                break
            until, words = time.monotonic() + float(words.split()[1]), b"done"
            _remove_folders(duty["remove"])
    return _remove(duty, 0.0 if words == b"done" else _QUIET) if duty else 0


def _hear(connection: socket.socket) -> bytes:
    """Return all that a supervisor says until it ends."""
    said = bytearray()
    with connection:
        with contextlib.suppress(OSError):  # it is over already
            connection.sendall(b".")
        with contextlib.suppress(OSError):  # reset: it has not read the answer
            while data := connection.recv(1 << 16):
                said += data
    return bytes(said)


def _remove(given: dict[str, Any], quiet: float) -> int:
    from estimators.backends.docker import ownership
    from estimators.backends.docker.engine import Engine
    from estimators.backends.docker.reapers import Duty
    from estimators.backends.images.errors import EngineError

    duty, engine = Duty(**given), Engine()
    _remove_folders(duty.remove)
    try:
        _remove_all(engine, {duty.label: duty.value}, quiet)
    except EngineError as error:
        print(f"fleetfit: the job's containers could not be removed: {error}", file=sys.stderr)
        return 1
    _remove_folders(duty.remove_last)
    try:
        ownership.give_back(engine, duty, engine.image(duty.image).user)
    except (EngineError, OSError) as error:
        print(f"fleetfit: the owner of the containers' files could not be changed: {error}", file=sys.stderr)
    return 0


def _remove_all(engine: Engine, labels: dict[str, str], quiet: float) -> None:
    """Remove what is on the engine until nothing has been found for a time.

    Raises:
        EngineError: it cannot be removed.
    """
    from estimators.backends.images.errors import EngineError

    since = time.monotonic()
    until = since + _DEADLINE
    while True:
        try:
            if engine.remove_all(labels):
                since = time.monotonic()
            elif time.monotonic() - since >= quiet:
                return
        except EngineError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def _remove_folders(folders: Sequence[str]) -> None:
    from container.system.removing import remove_tree

    for folder in folders:
        remove_tree(folder, ignore_errors=True)


if __name__ == "__main__":
    _here = Path(__file__).resolve()
    sys.path[:] = [str(_here.parents[3]), *(place for place in sys.path if place != str(_here.parent))]
    sys.exit(main(socket.socket(fileno=0)))
