"""Provide inputs to hosts whose files are in the job's record on this machine, and save the hosts' files.

These hosts are processes on this machine, or containers that mount the record.
"""

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

#: Seconds between two checks whether files exist.
_LOOK_S = 0.01


class LocalHost(Host):
    """A host on this machine that uses the caller's files.

    See :class:`estimators.backends.hosts.provider.Host` for the interface.

    Args:
        runner: The object that runs the processes of all hosts of the job.
        backend: The job's backend.
        name: The host's name in the job.
    """

    address = caller_address = "127.0.0.1"  # the job uses no network beyond this machine
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
        """Raise NotImplementedError, because the host uses the caller's files."""
        raise NotImplementedError(f"{source} is on {self.name}")

    async def pull(self, source: str, target: Path) -> None:
        """Raise NotImplementedError, because the host's files are on this machine already."""
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
    ) -> HostProcess:
        """Run a process. See :meth:`Host.run` for the arguments."""
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
        )
        return process

    async def listen(self) -> int:
        """Listen at a free port of the loopback interface, and return the port. Return 0 if listening fails."""
        try:
            return self._runner.listen(self.address)
        except OSError:
            return 0

    async def reach(self, address: str, port: int) -> None:
        """Do nothing, because all hosts are on this machine and reach each other."""

    async def list_files(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return the size and the modification time of each file below a folder, by the file's path in the folder.

        The size is in bytes, and the time in nanoseconds since the epoch.
        """
        folder = self._folder / path
        found = {}
        for file in folder.rglob("*"):
            with contextlib.suppress(OSError):  # the file was deleted after it was listed
                if file.is_file():
                    status = file.stat()
                    found[str(file.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
        return found

    def remove(self, paths: Sequence[str]) -> None:
        """Do nothing, because the record keeps its files."""

    async def await_files(self, paths: Sequence[str]) -> None:
        """Wait until all the files exist."""
        files = [self._folder / path for path in paths]
        while not all(file.exists() for file in files):
            await asyncio.sleep(_LOOK_S)

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """Send SIGKILL to all processes of the job except ``spare``.

        The processes of the other hosts are killed, too, because they cannot be distinguished from this host's
        processes.
        """
        self._runner.abort([process.running for process in spare if isinstance(process, LocalProcess)])

    def close(self) -> None:
        """Do nothing, because the host's files stay in the record."""


class LocalProcess:
    """A process on this machine.

    See :class:`estimators.backends.hosts.provider.HostProcess` for the interface.

    Attributes:
        running: The running process.
    """

    running: RunningProcess

    def __init__(self, on_output: Output, on_errors: Output) -> None:
        self.on_output = on_output
        self.on_errors = on_errors
        self._ended = asyncio.Event()
        self._end = ProcessEnd()

    def over(self, end: ProcessEnd) -> None:
        """Record how the process has ended."""
        self._end = end
        self._ended.set()

    def write(self, data: bytes) -> None:
        """Write data to the process's standard input or lifeline."""
        self.running.write(data)

    def close_input(self) -> None:
        """Close the process's standard input or lifeline."""
        self.running.close_input()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.running.signal(number)

    async def wait(self) -> ProcessEnd:
        """Wait until the process has ended and its output was passed on. Return how the process has ended."""
        await self._ended.wait()
        return self._end


class LocalPlatform(Platform):
    """The platform of all hosts of a job on this machine."""

    shared = True

    def __init__(self, backend: Backend, facts: config.BackendFacts) -> None:
        super().__init__(backend)
        self._facts = facts
        self._channels = self.record.path / "channels.json"

    def facts(self, host: Host) -> config.BackendFacts:
        """Return the values in a host's configuration that depend on the backend. They are the same for all hosts."""
        return self._facts

    def environment(self, host: Host) -> dict[str, str]:
        """Return the variables of :meth:`Platform.environment`, and a variable that tells that the hosts share a
        machine.
        """
        return {**super().environment(host), variables.SHARED_MACHINE: "1"}

    @property
    def mounts(self) -> Path:
        """Return the folder in which S3 buckets are mounted for all hosts."""
        return self.record.path / "mounts"

    @property
    def _sync_folder(self) -> str:
        return str(trees.checkpoints(self.record, self.spec).resolve())

    async def prepare(self, hosts: Sequence[Host], *, number: int = 0, count: int = 0, joins: bool = False) -> None:
        """Write the hosts' file trees. Then run one agent that provides the input channels of all these hosts."""
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
        """Create the first FIFOs of a host now. The feeder, the agent that fills the FIFOs, would create them later."""
        everybody = self.backend.other_users
        for first in self.fifos(host):
            place = first.parent
            place.mkdir(mode=0o700, exist_ok=True)
            if everybody and place != self.tree(host).data:
                place.chmod(0o755)  # other users cannot open the record, which contains this folder
            first.unlink(missing_ok=True)
            os.mkfifo(first, 0o600)
            if everybody:
                first.chmod(0o666)

    async def collect(self) -> Failure | None:
        """Copy the remaining saved files to S3, then pack the models and outputs of the hosts' file trees."""
        unsaved = await self.bring_saved()
        return await self.pack() or unsaved

    async def pack(self) -> Failure | None:
        """Pack the models and outputs of all hosts into the job's output path.

        Return the failure, or None if everything was packed or there is nothing to pack.
        """
        hosts = [self.record.tree(host) for host in self.spec.hosts]
        if not any(has_entries(folder) for tree in hosts for folder in (tree.model, tree.output_data)):
            return None
        bases = [word for tree in hosts for word in ("--base-dir", str(tree.base))]
        return await self.agent(["collect", *bases, "--output", local.output_uri(self.spec)]).end()

    def cleanup(self) -> None:
        """Remove the mounts, the hosts' copies of input data, and FIFOs, because the record must not keep them."""
        self.close()
        self._unmount()
        trees.remove_inputs(self.record, self.spec)
        self._channels.unlink(missing_ok=True)
        self._clear_pipes()

    def _clear_pipes(self) -> None:
        """Remove FIFOs that a killed agent has left behind. A program that reads all files of the record would block
        on a FIFO.
        """
        readers = self.spec.ranks_per_host if local.piped(self.spec) else 0
        for host in self.record.hosts if readers else ():
            for local_rank in range(readers):
                place = pipes.folder(self.record.tree(host).data, local_rank, readers)
                for channel in local.piped(self.spec):
                    pipes.clear(place, channel)

    def _unmount(self) -> None:
        """Unmount all S3 buckets, including mounts whose serving process has ended."""
        if not self.mounts.is_dir():
            return
        import subprocess  # imported late to keep a job's start fast

        self.end_mount()
        program = shutil.which("fusermount3") or shutil.which("fusermount")
        for place in self.mounts.iterdir():
            if program is not None and place.name != "ready":
                subprocess.run([program, "-u", "-z", "-q", str(place)], check=False, capture_output=True)
            with contextlib.suppress(OSError):  # removes only empty folders, so nothing inside a mount
                place.rmdir() if place.is_dir() else place.unlink()
        with contextlib.suppress(OSError):
            self.mounts.rmdir()


def has_entries(folder: Path) -> bool:
    """Return whether a folder has entries. Return True for a path that exists and cannot be read as a folder."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError as error:
        return not isinstance(error, FileNotFoundError)  # the agent reports a folder that cannot be read
