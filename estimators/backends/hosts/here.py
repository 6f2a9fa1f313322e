"""Hosts whose files are in the job's record on this machine: of processes, and of containers that have them mounted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import container
from container.contract import pipes
from container.system.running import ProcessEnd, Runner, RunningProcess
from estimators.backends import config, local, trees
from estimators.backends.base import Backend
from estimators.backends.hosts.platform import Done, Platform, Then, problem
from estimators.backends.hosts.provider import Done as Told
from estimators.backends.hosts.provider import Host, HostProcess, MachineFacts


class LocalHost:
    """A host on this machine, with the caller's files; see :class:`estimators.backends.hosts.provider.Host`.

    Args:
        runner: Runs the processes of all hosts of the job.
        backend: Whose job it is.
        name: Its name in the job.
    """

    address = caller_address = "127.0.0.1"  # nobody else on the network has a part in it
    interface = "lo"

    def __init__(self, runner: Runner, backend: Backend, name: str) -> None:
        self.name = name
        self._runner = runner
        self._backend = backend
        self._folder = backend.record.host_dir(name)
        package = str(Path(next(iter(container.__path__))).resolve())
        self.facts = MachineFacts(
            root=str(self._folder), python=backend.options.python, python_version="", package=package
        )
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.on_notice: Callable[[float], None] = lambda seconds: None

    def push(self, source: Path, target: str, done: Told, *, follow: bool = True) -> None:
        """Nothing is copied to a host that has the caller's files."""
        raise NotImplementedError(f"{source} is on {self.name}")

    def pull(self, source: str, target: Path, done: Told) -> None:
        """Nothing is copied from it."""
        raise NotImplementedError(f"{source} is here")

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        on_exit: Callable[[ProcessEnd], None],
        *,
        lifeline: str | None = None,
        listener: str | None = None,
        runtime: str | None = None,
        session: bool = False,
        tidies: bool = False,
        on_errors: Callable[[bytes], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> RunningProcess:
        """Run a process."""
        return self._runner.run(
            argv,
            env,
            on_output,
            on_exit,
            cwd=self._folder,
            lifeline=lifeline,
            listener=listener,
            runtime=runtime,
            session=session,
            tidies=tidies,
            on_errors=on_errors,
            pass_fds=pass_fds,
        )

    def listen(self, done: Callable[[int], None]) -> None:
        """Listen at a free port of loopback."""
        try:
            port = self._runner.listen(self.address)
        except OSError:
            port = 0
        done(port)

    def reach(self, address: str, port: int, done: Callable[[str | None], None]) -> None:
        """Say that another host is reached: it is on this machine, too."""
        done(None)

    def list_files(self, path: str, done: Callable[[Mapping[str, tuple[int, int]]], None]) -> None:
        """Say which files there are below a folder."""
        folder = self._folder / path
        found = {}
        for file in folder.rglob("*"):
            with contextlib.suppress(OSError):  # deleted since it was seen
                if file.is_file():
                    status = file.stat()
                    found[str(file.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
        done(found)

    def remove(self, paths: Sequence[str]) -> None:
        """Nothing is removed of the record."""

    def await_files(self, paths: Sequence[str], done: Told) -> None:
        """Wait until files are there, or the job is ended: what waits is an attempt's."""
        files = [self._folder / path for path in paths]
        self._runner.await_files(files, done, lambda: not self._backend.is_ending)

    def abort(self, spare: Sequence[HostProcess] = ()) -> None:
        """SIGKILL to everything of the job but some: what a host has left cannot be told from what others have."""
        self._runner.abort([process for process in self._runner.running if process in spare])

    def close(self) -> None:
        """Let it go; its files stay in the record."""


class LocalPlatform(Platform):
    """Serves all hosts of a job on this machine."""

    shared = True

    def __init__(self, backend: Backend, facts: config.BackendFacts) -> None:
        super().__init__(backend)
        self._facts = facts
        self._waiting: list[tuple[Host, Then]] = []
        self._channels = self.record.path / "channels.json"

    def facts(self, host: Host) -> config.BackendFacts:
        """The same for all."""
        return self._facts

    @property
    def mounts(self) -> Path:
        """One folder for all hosts."""
        return self.record.path / "mounts"

    @property
    def _sync_folder(self) -> str:
        return str(trees.checkpoints(self.record, self.spec).resolve())

    def prepare(self, host: Host, number: int, hosts: int, then: Then, *, joins: bool = False) -> None:
        """Write its tree; when all hosts have theirs, one agent brings the inputs to all of them."""
        if number == 0 and not joins:
            self.end_feeders()
            self.hosts.clear()
            self._waiting = []
        self.hosts[host.name] = host
        attempt = self.backend.attempt
        try:
            if attempt and not joins:
                trees.clear_tree(self.record, host.name)
            self._write(host)
        except OSError as error:
            self.fail(problem(f"the files of {host.name} could not be written: {error}"))
            return
        self._waiting.append((host, then))
        if len(self._waiting) < hosts:
            return
        waiting, self._waiting = self._waiting, []
        batch = [host for host, _ in waiting]

        def go_on() -> None:
            for _, one in waiting:
                one()

        def bring() -> None:
            self._bring_inputs(batch, go_on, joins=joins)

        if attempt == 0 and not joins and local.synced_checkpoints(self.spec) is not None:
            self.backend.callbacks.secondary_status("Downloading", "Restoring the checkpoints.")
            self.restore(bring)
        else:
            bring()

    def _write(self, host: Host) -> None:
        trees.write_tree(self.record, self.spec, host.name, self._facts)

    def _bring_inputs(self, hosts: Sequence[Host], then: Then, *, joins: bool) -> None:
        if not self.spec.inputs:
            then()
            return
        if not joins:
            self.backend.callbacks.secondary_status("Downloading", "Preparing the input channels.")
        try:
            self._channels.write_text(json.dumps(local.agent_channels(self.spec)), encoding="utf-8")
        except OSError as error:
            self.fail(problem(f"the job's files could not be written: {error}"))
            return
        self.bring_channels(hosts, str(self._channels), (), then, joins=joins)

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

    def collect(self, done: Done) -> None:
        """Bring the rest of what was saved, then pack the trees' models and outputs."""
        self.bring_saved(lambda unsaved: self.pack(lambda failure: done(failure or unsaved)))

    def pack(self, done: Done) -> None:
        """Pack the models and outputs of all hosts in the record to where the job wants them."""
        hosts = [self.record.tree(host) for host in self.spec.hosts]
        if not any(_has_entries(folder) for tree in hosts for folder in (tree.model, tree.output_data)):
            done(None)
            return
        bases = [word for tree in hosts for word in ("--base-dir", str(tree.base))]
        self.agent(["collect", *bases, "--output", local.output_uri(self.spec)], done)

    def cleanup(self) -> None:
        """Remove the mounts, and the hosts' copies of their data: a record must not keep those bytes."""
        self.cancel()
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
