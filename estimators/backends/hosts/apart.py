"""Copy a job's files to and from a host that shares no files with the caller's machine.

Code, data and checkpoints are copied to the host before its training starts. New checkpoints are copied back while the
job runs. Models and outputs are copied back when the attempt has ended.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.contract.failures import Cause, Failure
from container.contract.frames import BODY_LIMIT, LINE_LIMIT
from container.contract.messages import encode
from container.system import saved, transfer
from container.system.asyncio_loop import gather
from container.system.locations import is_s3, path_here
from estimators.backends import config, local, trees
from estimators.backends.events import StatusTold
from estimators.backends.hosts.agents import Agent, Sync
from estimators.backends.hosts.checkpoints import IncomingCheckpoints
from estimators.backends.hosts.platform import Platform, PreparationFailed, problem
from estimators.backends.hosts.provider import Host, HostError, HostLost

#: Seconds between two scans in which the host's agent looks for new checkpoints.
_LOOK_S = 0.5


class ApartPlatform(Platform):
    """A platform for one host that shares no files with the caller's machine."""

    _submit_directory: str | None = None
    #: The checkpoint files that were copied to the host: path -> size in bytes and modification time in ns.
    _restored: Mapping[str, tuple[int, int]] = {}

    def facts(self, host: Host) -> config.BackendFacts:
        """Return the values in the host's configuration that depend on the backend.

        The submit directory is the folder on the host that the code was copied to.
        """
        return config.BackendFacts(
            network_interface=host.interface,
            instance_type=self.backend.options.asked_instance_type,
            submit_directory=self._submit_directory,
        )

    async def prepare(self, hosts: Sequence[Host], *, number: int = 0, count: int = 0, joins: bool = False) -> None:
        """Copy the job's files on this machine to the host. Then make the host's agent download the other inputs."""
        [host] = hosts
        self.hosts = {host.name: host}
        if self.spec.inputs and not joins and not self.backend.running:  # in an elastic job another host may train
            self.backend.events.put_nowait(StatusTold("Downloading", "Copying the input channels to the hosts."))
        host.remove(["ml/model", "ml/output", "ml/input", "ml/pipe_state", "source"])
        pushes: list[tuple[Path, str]] = []
        try:
            pushes += self._code(host)
            pushes += self._write_config(host)
            bring = self._plan_channels(host, pushes)
        except OSError as error:
            raise PreparationFailed(f"the files of {host.name} could not be written: {error}") from error
        await self.restore()
        await gather(*(self._push(host, source, target) for source, target in pushes))
        if bring:
            file = f"{host.facts.root}/agent/channels.json"
            place = ["--number", str(number), "--hosts", str(count)]
            await self.bring_channels([host], file, place, joins=joins, first=number)

    async def _push(self, host: Host, source: Path, target: str, *, follow: bool = True) -> None:
        try:
            await host.push(source, target, follow=follow)
        except HostLost:
            raise
        except HostError as error:
            what = "the checkpoints" if target == "ml/checkpoints" else source
            raise PreparationFailed(f"{what} could not be copied to {host.name}: {error}") from error

    def _code(self, host: Host) -> list[tuple[Path, str]]:
        """Return which paths with the user's code to copy, and set the submit directory.

        Each item is a pair of a path on this machine and the target folder on the host.
        """
        self._submit_directory = None
        place = self.spec.submit_directory
        if is_s3(place or ""):
            # The archive was unpacked into the record. A host that has the code does not download it from S3.
            return [(self.record.source_dir, "ml/code")] if self.record.source_dir.is_dir() else []
        path = path_here(place) if place else None
        if path is None:
            return []
        self._submit_directory = f"{host.facts.root}/source{'' if path.is_dir() else f'/{path.name}'}"
        return [(path, "source")]

    def _write_config(self, host: Host) -> list[tuple[Path, str]]:
        """Write the host's configuration into the record, and return the files to copy to the host.

        Each item is a pair of a path on this machine and the target folder on the host.
        """
        tree = self.record.tree(host.name)
        tree.config.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in config.host_config(self.spec, host.name, self.facts(host)).files(tree).items():
            Path(path).write_text(text, encoding="utf-8")
        return [(tree.config, "ml/input/config")]

    def _plan_channels(self, host: Host, pushes: list[tuple[Path, str]]) -> bool:
        """Add the channels' files on this machine to ``pushes``, the list of files to copy to the host.

        Return whether the host's agent has to provide some of the channels.
        """
        channels = {}
        for name, values in local.agent_channels(self.spec).items():
            path = path_here(str(values["uri"]))
            if path is None:
                channels[name] = values
                continue
            if lacking := transfer.left_out(path):
                raise PreparationFailed(f"channel {name!r}: {lacking}")
            whole = values.get("mode") != "Pipe" and values.get("data_type", "S3Prefix") == "S3Prefix"
            if whole and values.get("distribution", "FullyReplicated") == "FullyReplicated":
                pushes.append((path, f"ml/input/data/{name}"))  # copied as a whole, so the agent has nothing to do
                continue
            place = f"inputs/{name}"
            pushes.append((path, place))
            channels[name] = {
                **values,
                "uri": f"{host.facts.root}/{place}{'' if path.is_dir() else f'/{path.name}'}",
            }
        if channels:
            file = self.record.tree(host.name).base / "channels" / "channels.json"
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_text(json.dumps(channels), encoding="utf-8")
            pushes.append((file, "agent"))
        return bool(channels)

    async def restore(self) -> None:
        """Copy the job's checkpoints from this machine to the host, unless the host already has the same files.

        If the job stores its checkpoints on S3, make the host download them from S3 instead.
        """
        if local.synced_checkpoints(self.spec) is not None:
            await super().restore()
            return
        host, folder = self.first, trees.checkpoints(self.record, self.spec)
        folder.mkdir(parents=True, exist_ok=True)
        self._restored = {}  # the host's agent has to send back all files that are not in this mapping
        files = await host.list_files("ml/checkpoints")
        mine = saved.files_below(folder)
        same = mine.keys() == files.keys() and all(
            mine[name][0] == files[name][0] and abs(mine[name][1] - files[name][1]) < 1_000_000 for name in mine
        )
        if not mine:
            return
        if not same:
            host.remove(["ml/checkpoints"])
            await self._push(host, folder, "ml/checkpoints", follow=False)
            files = await host.list_files("ml/checkpoints")
        self._restored = files

    def bring_checkpoints(self) -> Sync:
        """Start the agent that sends the host's new checkpoints to the job's folder on this machine."""
        folder = trees.checkpoints(self.record, self.spec)
        name = self.first.name
        incoming = IncomingCheckpoints(folder, name, functools.partial(self.backend.hand_on, name))
        words = ["sync", "out", *self._sync_words(), "--every", f"{_LOOK_S:g}"]
        agent = self.agent(words, on_output=incoming.take)
        known = encode({"op": "restored", "files": self._restored}, 2 * LINE_LIMIT)
        for start in range(0, len(known), BODY_LIMIT):
            agent.process.write(known[start : start + BODY_LIMIT])
        return self.sync(agent, self._all_came(agent, incoming))

    async def _all_came(self, agent: Agent, incoming: IncomingCheckpoints) -> Failure | None:
        """Wait until the agent has ended. Return the failure if checkpoints are missing on this machine, or None."""
        try:
            failure = await agent.end()
        finally:
            incoming.close()
        if incoming.error is not None:
            return problem(f"the checkpoints could not be written to {incoming.folder}: {incoming.error}")
        return failure

    async def collect(self) -> Failure | None:
        """Copy the host's remaining checkpoints and other saved files to this machine, then its models and outputs."""
        host, tree = self.first, self.record.tree(self.first.name)
        self.end_mount()
        unsaved = await self.bring_saved()
        try:
            uncopied = await gather(
                self._pull(host, "ml/model", tree.model), self._pull(host, "ml/output", tree.output)
            )
        except HostLost as error:
            text = f"{host.name} was lost while its outputs were brought here: {error}."
            return Failure(cause=Cause.HOST_LOST, message=text, host=host.name)
        return next((failure for failure in (unsaved, *uncopied) if failure is not None), None)

    async def _pull(self, host: Host, source: str, target: Path) -> Failure | None:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            await host.pull(source, target)
        except HostLost:
            raise
        except HostError as error:
            return problem(f"the outputs of {host.name} could not be copied here: {error}")
        return None
