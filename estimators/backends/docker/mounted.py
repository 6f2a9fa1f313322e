"""Prepare the files of hosts that are containers.

The containers mount their file trees from this machine as ``/opt/ml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from container.contract.failures import Failure
from estimators.backends import trees
from estimators.backends.base import Backend
from estimators.backends.docker import containers
from estimators.backends.hosts.here import LocalPlatform
from estimators.backends.hosts.provider import Host

if TYPE_CHECKING:
    from estimators.backends.docker.provider import DockerProvider


class MountedPlatform(LocalPlatform):
    """An object that prepares and saves the files of a job's hosts, which are containers.

    The agents, helper processes for this work, run on this machine outside the containers.
    """

    def __init__(self, backend: Backend, provider: DockerProvider) -> None:
        super().__init__(backend, containers.facts(backend.options))
        self._provider = provider

    def environment(self, host: Host) -> dict[str, str]:
        """Return the environment variables of a host's toolkit, with the container's paths."""
        return containers.environment_of(self.spec, self.backend.options, host.name)

    def _write(self, host: Host) -> None:
        # A kept container has the same paths as this machine.
        links = bool(self.spec.resources.keep_alive_s)
        trees.write_mounted_tree(self.record, self.spec, host.name, self._facts, links=links)
        self._provider.write_names(host.name)

    async def bring_saved(self) -> Failure | None:
        """Make the user the owner of the files that the containers have written. Then copy the saved files that were
        not copied before.
        """
        await self._provider.give_back()
        return await super().bring_saved()
