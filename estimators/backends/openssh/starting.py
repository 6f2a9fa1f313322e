"""Start one of fleetfit's own programs on a machine that is reached by ssh.

If the machine lacks the program's code, the code is copied first. If the machine lacks the program's Python
environment, the environment is created first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from container.contract.frozen import dataclass
from estimators.backends.hosts import shipping
from estimators.backends.hosts.child import ChildProcess
from estimators.backends.hosts.provider import HostError, Say
from estimators.backends.openssh.connection import NotStarted, SshConnection


@dataclass(frozen=True, kw_only=True)
class OurProgram:
    """A program of ours to run on a machine.

    Attributes:
        code: The packages of ours that the program needs.
        python: The path of the program's Python interpreter on the machine, or the name of a Python environment that
            fleetfit creates there.
        others: The names of other environments of fleetfit. If ``python`` does not exist on the machine, the program
            uses the first of these environments that exists there.
        words: The arguments of the program.
        environment: The arguments of :meth:`estimators.backends.hosts.environment.PythonEnvironment.of`, to create a
            missing environment. If None, the interpreter ``python`` must exist.
        script: The ``sh`` script that starts the program: a constant of :mod:`estimators.backends.hosts.shipping`.
    """

    code: shipping.ShippedCode
    python: str
    words: Sequence[str]
    environment: dict[str, Any] | None
    others: Sequence[str] = ()
    script: str = shipping.START


async def start(connection: SshConnection, program: OurProgram, say: Say) -> ChildProcess:
    """Start a program on a machine. If code or an environment is missing there, copy or create it first.

    Args:
        connection: The connection to the machine.
        program: The program.
        say: A function that receives progress messages while an environment is created.

    Raises:
        HostError: the program cannot be started. The message has the reason.
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
    """Start a program. If the program's code is missing on the machine, copy the code first."""
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
    """Create an environment on the machine.

    The creation takes long, so a separate program on this machine does the work.

    Raises:
        HostError: the environment cannot be created. The message has the reason.
    """
    made = ChildProcess(connection.loop, [sys.executable, "-m", "estimators.backends.hosts.environment"])
    try:
        os.write(made.input, json.dumps({"words": connection.words, "environment": environment}).encode())
        made.close_input()
        with contextlib.suppress(EOFError):
            while True:
                say((await made.line()).decode("utf-8", "replace").rstrip("\n"))
        if (code := await made.wait()) != 0:
            raise HostError(connection.ended or made.complaint or f"preparation exited with code {code}")
    finally:
        made.kill()
        made.close()
