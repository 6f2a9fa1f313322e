"""Represent agents, the fleetfit processes that provide inputs to hosts and save hosts' files (:mod:`.platform`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from container.contract.failures import Cause, Failure, describe_end
from estimators.backends.hosts.provider import Host, HostProcess


class Agent:
    """A fleetfit process that runs beside the training processes of hosts, and provides inputs or saves files.

    Args:
        process: The process.
        said: The output of the process until now. The caller appends new output.
        host: The name of the host that a failure of the agent is attributed to. None if the agent does not belong to a
            single host.
    """

    def __init__(self, process: HostProcess, said: bytearray, *, host: str | None) -> None:
        self.process = process
        self._said = said
        self._host = host

    async def end(self) -> Failure | None:
        """Wait until the agent has ended, and return its failure. Return None if the agent has succeeded.

        The failure's message is the agent's last line of output, unless the agent could not be started or was killed by
        a signal.
        """
        end = await self.process.wait()
        if end.exit_code == 0:
            return None
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        # A killed agent could not print the reason of its end. Its last line is about something else.
        told = lines[-1] if lines and end.signal is None else ""
        text = end.error or told or f"the host agent {describe_end(end.exit_code, end.signal)}."
        process = "agent" if self._host is not None else None
        return Failure(cause=Cause.CONFIGURATION, message=text, host=self._host, process=process)


class Sync:
    """An agent that copies a host's files until the agent's standard input ends.

    Attributes:
        agent: The agent.
        over: The task that waits for the end of the agent. Its result is the failure if some files could not be copied,
            or None.
        finishes: Whether the agent was told to copy the remaining files and exit.
    """

    def __init__(self, agent: Agent, over: asyncio.Task[Failure | None]) -> None:
        self.agent = agent
        self.over = over
        self.finishes = False

    async def finish(self) -> Failure | None:
        """Make the agent copy the remaining files and exit, and wait until the agent has ended.

        Returns:
            The failure if some files could not be copied. None if all files were copied.
        """
        if not self.finishes and not self.over.done():
            self.agent.process.close_input()
        self.finishes = True
        return await asyncio.shield(self.over)


def agent_command(host: Host, words: Sequence[str]) -> list[str]:
    """Return the argv of an agent on a host."""
    return [host.facts.python, "-I", f"{host.facts.package}/__main__.py", "agent", *words]
