"""A program of ours is started on a machine, and what it lacks there is brought first: our code, an environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from estimators.backends.hosts import shipping
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.provider import HostError, Say
from estimators.backends.openssh.connection import NotStarted, SshConnection


@dataclasses.dataclass(frozen=True, kw_only=True)
class OurProgram:
    """A program of ours for a machine.

    Attributes:
        code: Our packages that it needs.
        python: Its interpreter there, or the name of an environment of ours.
        others: Names of environments that are as good, if they are there.
        words: Its words.
        environment: How an environment that is not there is made, as the program
            ``estimators.backends.hosts.environment`` is told; None: ``python`` names one that has to be there.
        script: How it is started from its words, one of :mod:`estimators.backends.hosts.shipping`'s.
    """

    code: shipping.ShippedCode
    python: str
    words: Sequence[str]
    environment: dict[str, Any] | None
    others: Sequence[str] = ()
    script: str = shipping.START


async def start(connection: SshConnection, program: OurProgram, say: Say) -> ChildProcess:
    """Start a program. Its code and its environment are each brought once.

    Args:
        connection: The machine.
        program: The program to start there.
        say: Told what an environment is being made with.

    Raises:
        HostError: it cannot be started; with the reason.
    """
    try:
        for python in (program.python, *program.others):
            try:
                return await _start_with_code(connection, program, python)
            except NotStarted as error:
                if error.code != shipping.NO_PYTHON:
                    raise
        if program.environment is None:
            raise HostError(f"{program.python} does not exist there. Name an interpreter that exists")
        await _prepare(connection, program.environment, say)
        return await _start_with_code(connection, program, program.python)
    except NotStarted as error:
        raise HostError(connection.ended or f"the agent could not be started: {error}") from None


async def _start_with_code(connection: SshConnection, program: OurProgram, python: str) -> ChildProcess:
    """Start a program, and bring its code where that is not there."""
    words = [program.code.name, python, *program.words]
    try:
        return await connection.start(words, script=program.script)
    except NotStarted as error:
        if error.code != shipping.NO_CODE:
            raise
    sent = await connection.run(["sh", "-c", shipping.TAKE_CODE, "sh", program.code.name], program.code.archive())
    if sent.code != 0:
        raise HostError(f"fleetfit's code could not be copied there: {sent.last_line}")
    return await connection.start(words, script=program.script)


async def _prepare(connection: SshConnection, environment: dict[str, Any], say: Say) -> None:
    """Have the environment made there by a program of its own, as that takes long."""
    made = ChildProcess(connection.loop, [sys.executable, "-m", "estimators.backends.hosts.environment"])
    try:
        os.write(made.input, json.dumps({"words": connection.words, **environment}).encode())
        made.close_input()
        with contextlib.suppress(EOFError):
            while True:
                say((await made.line()).decode("utf-8", "replace").rstrip("\n"))
        if (code := await made.wait()) != 0:
            raise HostError(connection.ended or made.complaint or f"preparation exited with code {code}")
    finally:
        made.kill()
        made.close()
