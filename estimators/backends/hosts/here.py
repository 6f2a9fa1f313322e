"""Hosts whose files are in the job's record on this machine: of processes, and of containers that have them mounted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import container
from container.contract import pipes, variables
from container.contract.failures import Failure
from container.system.running import ProcessEnd, Runner, RunningProcess
from estimators.backends import config, local, trees
from estimators.backends.base import Backend
from estimators.backends.events import StatusTold
from estimators.backends.hosts.platform import Platform, PreparationFailed
from estimators.backends.hosts.provider import Host, HostFacts, HostProcess, Output

#: How often it is looked whether files are there, in seconds.
_LOOK_S = 0.01


class LocalHost(Host):
    """A host on this machine, with the caller's files; see :class:`estimators.backends.hosts.provider.Host`.

    Args:
        runner: Runs the processes of all hosts of the job.
        backend: The job's backend.
        name: Its name in the job.
    """

    address = caller_address = "127.0.0.1"  # nobody else on the network has a part in it
    interface = "lo"

    def __init__(self, runner: Runner, backend: Backend, name: str) -> None:
        super().__init__()
        self.name = name
        self._runner = runner
        self._folder = backend.record.host_dir(name)
        package = str(Path(next(iter(container.__path__))).resolve())
        self.facts = HostFacts(
            root=str(self._folder), python=backend.options.python, python_version="", package=package
        )

    async def push(self, source: Path, target: str, *, follow: bool = True) -> None:
        """Nothing is copied to a host that has the caller's files."""
        raise NotImplementedError(f"{source} is on {self.name}")

    async def pull(self, source: str, target: Path) -> None:
        """Nothing is copied from it."""
        raise NotImplementedError(f"{source} is here")

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Output,
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Output | None = None,
        pass_fds: Sequence[int] = (),
    ) -> HostProcess:
        """Run a process; see :meth:`Host.run`.

        Args:
            pass_fds: Descriptors that it inherits.
        """
        process = LocalProcess(on_output, on_errors or on_output)
        process.running = self._runner.run(
            argv,
            env,
            process,
            cwd=self._folder,
            apart=on_errors is not None,
            lifeline=lifeline,
            listener=listener,
            runtime=runtime,
            session=session,
            tidies=tidies,
            pass_fds=pass_fds,
        )
        return process

    async def listen(self) -> int:
        """Listen at a free port of loopback."""
        try:
            return self._runner.listen(self.address)
        except OSError:
            return 0

    async def reach(self, address: str, port: int) -> None:
        """Do nothing: the other host is on this machine, too."""

    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return the files below a folder."""
        folder = self._folder / path
        found = {}
        for file in folder.rglob("*"):
            with contextlib.suppress(OSError):  # deleted since it was seen
                if file.is_file():
                    status = file.stat()
                    found[str(file.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
        return found

    def remove(self, paths: Sequence[str]) -> None:
        """Nothing is removed of the record."""

    async def await_files(self, paths: Sequence[str]) -> None:
        """Wait until files are there."""
        files = [self._folder / path for path in paths]
        while not all(file.exists() for file in files):
            await asyncio.sleep(_LOOK_S)

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to everything of the job but some: what a host has left cannot be told from others'."""
        self._runner.abort([process.running for process in spare if isinstance(process, LocalProcess)])

    def close(self) -> None:
        """Let it go; its files stay in the record."""


class LocalProcess:
    """A process of this machine; see :class:`estimators.backends.hosts.provider.HostProcess`.

    Attributes:
        running: The process.
    """

    running: RunningProcess

    def __init__(self, on_output: Output, on_errors: Output) -> None:
        self.on_output = on_output
        self.on_errors = on_errors
        self._ended = asyncio.Event()
        self._end = ProcessEnd()

    def over(self, end: ProcessEnd) -> None:
        """Note how it has ended."""
        self._end = end
        self._ended.set()

    def write(self, data: bytes) -> None:
        """Write to its input."""
        self.running.write(data)

    def close_input(self) -> None:
        """End its input."""
        self.running.close_input()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.running.signal(number)

    async def wait(self) -> ProcessEnd:
        """Return how it has ended, after all that it printed was given."""
        await self._ended.wait()
        return self._end


class LocalPlatform(Platform):
    """Serves all hosts of a job on this machine."""

    shared = True

    def __init__(self, backend: Backend, facts: config.BackendFacts) -> None:
        super().__init__(backend)
        self._facts = facts
        self._channels = self.record.path / "channels.json"

    def facts(self, host: Host) -> config.BackendFacts:
        """The same for all."""
        return self._facts

    def environment(self, host: Host) -> dict[str, str]:
        """See :meth:`Platform.environment`; the hosts share the machine."""
        return {**super().environment(host), variables.SHARED_MACHINE: "1"}

    @property
    def mounts(self) -> Path:
        """One folder for all hosts."""
        return self.record.path / "mounts"

    @property
    def _sync_folder(self) -> str:
        return str(trees.checkpoints(self.record, self.spec).resolve())

    async def prepare(self, hosts: Sequence[Host], *, number: int = 0, count: int = 0, joins: bool = False) -> None:
        """Write the hosts' trees; then one agent brings the inputs to all of them."""
        if not joins:
            self.end_feeders()
            self.hosts.clear()
        attempt = self.backend.attempt
        for host in hosts:
            self.hosts[host.name] = host
            try:
                if attempt and not joins:
                    trees.clear_tree(self.record, host.name)
                self._write(host)
            except OSError as error:
                raise PreparationFailed(f"the files of {host.name} could not be written: {error}") from error
        if attempt == 0 and not joins and local.synced_checkpoints(self.spec) is not None:
            self.backend.events.put_nowait(StatusTold("Downloading", "Restoring the checkpoints."))
            await self.restore()
        await self._bring_inputs(hosts, joins=joins)

    def _write(self, host: Host) -> None:
        trees.write_tree(self.record, self.spec, host.name, self._facts)

    async def _bring_inputs(self, hosts: Sequence[Host], *, joins: bool) -> None:
        if not self.spec.inputs:
            return
        if not joins:
            self.backend.events.put_nowait(StatusTold("Downloading", "Preparing the input channels."))
        try:
            self._channels.write_text(json.dumps(local.agent_channels(self.spec)), encoding="utf-8")
        except OSError as error:
            raise PreparationFailed(f"the job's files could not be written: {error}") from error
        await self.bring_channels(hosts, str(self._channels), (), joins=joins)

    def make_fifos(self, host: Host) -> None:
        """Make them at once, and not when the feeder has loaded."""
        everybody = self.backend.other_users
        for first in self.fifos(host):
            place = first.parent
            place.mkdir(mode=0o700, exist_ok=True)
            if everybody and place != self.tree(host).data:
                place.chmod(0o755)  # the record around it is the user's only
            first.unlink(missing_ok=True)
            os.mkfifo(first, 0o600)
            if everybody:
                first.chmod(0o666)

    async def collect(self) -> Failure | None:
        """Bring the rest of what was saved, then pack the trees' models and outputs."""
        unsaved = await self.bring_saved()
        return await self.pack() or unsaved

    async def pack(self) -> Failure | None:
        """Pack the models and outputs of all hosts in the record to where the job wants them."""
        hosts = [self.record.tree(host) for host in self.spec.hosts]
        if not any(_has_entries(folder) for tree in hosts for folder in (tree.model, tree.output_data)):
            return None
        bases = [word for tree in hosts for word in ("--base-dir", str(tree.base))]
        return await self.agent(["collect", *bases, "--output", local.output_uri(self.spec)]).end()

    def cleanup(self) -> None:
        """Remove the mounts, and the hosts' copies of their data: a record must not keep those bytes."""
        self.close()
        self._unmount()
        trees.remove_inputs(self.record, self.spec)
        self._channels.unlink(missing_ok=True)
        self._clear_pipes()

    def _clear_pipes(self) -> None:
        """Remove what an agent that was killed has left of its FIFOs: whoever reads the record would wait for ever."""
        readers = local.readers_per_host(self.spec) if local.has_pipes(self.spec) else 0
        for host in self.record.hosts if readers else ():
            for local_rank in range(readers):
                place = pipes.folder(self.record.tree(host).data, local_rank, readers)
                for channel in local.piped(self.spec):
                    pipes.clear(place, channel)

    def _unmount(self) -> None:
        """Let go of the mounts, also of those that nobody serves any more."""
        if not self.mounts.is_dir():
            return
        import subprocess  # a job's start waits for what is imported

        self.end_mount()
        program = shutil.which("fusermount3") or shutil.which("fusermount")
        for place in self.mounts.iterdir():
            if program is not None and place.name != "ready":
                subprocess.run([program, "-u", "-z", "-q", str(place)], check=False, capture_output=True)
            with contextlib.suppress(OSError):  # never into a mount
                place.rmdir() if place.is_dir() else place.unlink()
        with contextlib.suppress(OSError):
            self.mounts.rmdir()


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
