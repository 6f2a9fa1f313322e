"""A program of ours is started on a machine, and what it lacks there is brought first: our code, an environment."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from container.system.loop import Loop
from estimators.backends.hosts import shipping
from estimators.backends.ssh.child import Child
from estimators.backends.ssh.connection import Finished, SshConnection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What is started.

    Attributes:
        code: Our packages that it needs.
        python: Its interpreter there, or the name of an environment of ours.
        others: Names of environments that are as good, if they are there.
        words: Its words.
        environment: How an environment that is not there is made, as the program
            ``estimators.backends.hosts.environment`` is told; None: ``python`` names one that has to be there.
        script: How it is started from its words, one of :mod:`estimators.backends.hosts.shipping`'s.
    """

    code: shipping.Code
    python: str
    words: Sequence[str]
    environment: dict[str, Any] | None
    others: Sequence[str] = ()
    script: str = shipping.START


class Starting:
    """One program that is being started. Its code and its environment are each brought once.

    Args:
        loop: The loop.
        connection: The machine.
        program: What is started there.
        started: Called with the descriptors to read from it and to write to it.
        failed: Called with the reason if it cannot be.
        on_end: Called with how it ended, after it has begun.
        say: Told what an environment is being made with.
        children: Where the process goes that makes one, to be ended with whoever asked.
    """

    def __init__(
        self,
        loop: Loop,
        connection: SshConnection,
        program: Program,
        *,
        started: Callable[[int, int], None],
        failed: Callable[[str], None],
        on_end: Callable[[Finished], None] = lambda finished: None,
        say: Callable[[str], None] = lambda text: None,
        children: list[Child],
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._program = program
        self._started = started
        self._failed = failed
        self._on_end = on_end
        self._say = say
        self._children = children
        self._sent = self._prepared = False
        #: The interpreter that it is started with, and what is tried next.
        self.python, self._others = program.python, list(program.others)

    def begin(self) -> None:
        """Try to start it."""
        program = self._program
        words = [program.code.name, self.python, *program.words]
        self._connection.start(words, self._started, self._not, script=program.script, on_end=self._on_end)

    def _not(self, finished: Finished) -> None:
        lacks_python = finished.code == shipping.NO_PYTHON
        if finished.code == shipping.NO_CODE and not self._sent:
            self._sent = True
            self._send_code()
        elif lacks_python and self._others:
            self.python = self._others.pop(0)
            self.begin()
        elif lacks_python and self._program.environment is None:
            self._failed(f"{self._program.python} does not exist there; name an interpreter that does")
        elif lacks_python and not self._prepared:
            self._prepared = True
            self.python = self._program.python
            self._prepare(self._program.environment or {})
        else:
            self._failed(self._connection.ended or f"the agent could not be started: {finished.last_line}")

    def _send_code(self) -> None:
        def sent(finished: Finished) -> None:
            if finished.code == 0:
                self.begin()
            else:
                self._failed(f"fleetfit's code could not be copied there: {finished.last_line}")

        code = self._program.code
        self._connection.run(["sh", "-c", shipping.TAKE_CODE, "sh", code.name], sent, source=code.archive())

    def _prepare(self, environment: dict[str, Any]) -> None:
        """Have the environment made there by a program of its own, as that takes long."""
        asked = {"words": self._connection.words, **environment}
        said = bytearray()

        def take(data: bytes) -> None:
            said.extend(data)
            *lines, rest = bytes(said).split(b"\n")
            said[:] = rest
            for line in lines:
                self._say(line.decode("utf-8", "replace"))

        def ended(code: int, errors: str) -> None:
            if code == 0:
                self.begin()
            else:
                lines = errors.strip().splitlines()
                self._failed(self._connection.ended or (lines[-1] if lines else f"preparation exited with code {code}"))

        argv = [sys.executable, "-m", "estimators.backends.hosts.environment"]
        self._children.append(Child(self._loop, argv, take, ended, source=json.dumps(asked).encode()))
