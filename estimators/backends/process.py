"""Hosts as processes on this machine: nothing to install, no root, no containers.

Each host is one ``python -m container train`` with a file tree of its own under the record; the control connection
between them runs over loopback with a token made for the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import container
from container.contract import pipes, variables
from container.contract.failures import Cause, Failure
from container.supervision import folders, processes
from estimators.backends import config, local
from estimators.backends.base import Backend, HostEnd
from estimators.errors import UnsupportedError
from estimators.jobs.record import JobRecord
from estimators.spec import RunOptions, TrainingJobSpec

_READ_SIZE = 1 << 18


class ProcessBackend(Backend):
    """Runs the hosts of a job as processes of this machine; see :class:`estimators.backends.base.Backend`."""

    name = "local_process"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package = str(Path(next(iter(container.__path__))).resolve())
        self._runtime = folders.make()
        self._hosts: dict[str, _HostProcess] = {}
        self._helpers: set[int] = set()
        self._feeders: set[int] = set()
        self._mounts = self.record.path / "mounts"
        self._mounts_input = -1
        self._sync: int | None = None
        self._sync_input = -1
        self._sync_failure: Failure | None = None
        self._sync_waiting: Callable[[Failure | None], None] | None = None
        self._lifelines: list[int] = []
        self._attempt = 0
        self._ending = False

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Refuse what only containers or AWS can do."""
        for channel in spec.inputs:
            refusal = local.channel_refusal(spec, channel)
            if refusal is not None:
                raise UnsupportedError(f"channel {channel.name!r} on instance_type 'local_process': {refusal}")

    @property
    def running(self) -> bool:
        """Whether a toolkit runs."""
        return any(not process.ended for process in self._hosts.values())

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Write every host's files, link the channels, start the toolkits."""
        self._attempt = attempt
        self._ending = False
        self._hosts.clear()
        self._close_lifelines()
        self._end_feeders()
        try:
            for host in self.spec.hosts:
                write_tree(self.record, self.spec, host)
        except OSError as error:
            self.callbacks.failed(_configuration(f"the job's files could not be written: {error}"))
            return
        if attempt == 0 and local.synced_checkpoints(self.spec) is not None:
            self._restore_checkpoints()
        else:
            self._bring_inputs()

    def _restore_checkpoints(self) -> None:
        self.callbacks.secondary_status("Downloading", "Restoring the checkpoints.")

        def restored(failure: Failure | None) -> None:
            if self._ending:
                return
            if failure is not None:
                self.callbacks.failed(failure)
            else:
                self._bring_inputs()

        self._run_agent(["sync", "down", *self._sync_arguments()], restored)

    def _bring_inputs(self) -> None:
        if self.spec.inputs:
            self.callbacks.secondary_status("Downloading", "Bringing the input channels.")
            self._prepare_inputs()
        else:
            self._start_hosts()

    def _prepare_inputs(self) -> None:
        channels = self._runtime / "channels.json"
        channels.write_text(json.dumps(local.agent_channels(self.spec)), encoding="utf-8")
        trees = [argument for host in self.spec.hosts for argument in ("--base-dir", str(self.record.tree(host).base))]

        def prepared(failure: Failure | None) -> None:
            if self._ending:
                return
            if failure is not None:
                self.callbacks.failed(failure)
            else:
                self._mount(channels, trees)

        self._run_agent(["prepare", *trees, "--channels", str(channels)], prepared)

    def _mount(self, channels: Path, trees: list[str]) -> None:
        """Start the agent of the channels in FastFile mode, and the hosts when everything is mounted."""

        def mounted() -> None:
            self._start_feeders(channels)
            self._start_hosts()

        if not local.mounted(self.spec) or self._mounts_input >= 0:
            mounted()
            return
        ready = self._mounts / "ready"
        read_end, self._mounts_input = os.pipe()

        def ended(failure: Failure | None) -> None:
            if not self._ending and (self.running or not ready.exists()):
                self.callbacks.failed(failure or _configuration("the agent of the FastFile channels ended early."))

        def look() -> None:
            if ready.exists():
                mounted()
            elif not self._ending:
                self.loop.call_later(0.02, look)

        try:
            self._run_agent(
                ["mount", *trees, "--channels", str(channels), "--mounts", str(self._mounts)], ended, stdin=read_end
            )
        finally:
            os.close(read_end)
        look()

    def _unmount(self) -> None:
        """Let go of the mounts, also of those that nobody serves any more."""
        if self._mounts_input < 0:
            return
        os.close(self._mounts_input)
        self._mounts_input = -1
        program = shutil.which("fusermount3") or shutil.which("fusermount")
        for place in self._mounts.iterdir() if self._mounts.is_dir() else ():
            if program is not None and place.name != "ready":
                subprocess.run([program, "-u", "-z", "-q", str(place)], check=False, capture_output=True)
            with contextlib.suppress(OSError):  # never into a mount
                place.rmdir() if place.is_dir() else place.unlink()
        with contextlib.suppress(OSError):
            self._mounts.rmdir()

    def _start_feeders(self, channels: Path) -> None:
        """Start the agents that feed the channels in Pipe mode, one for each host, beside the toolkits."""
        for number, host in enumerate(self.spec.hosts if local.has_pipes(self.spec) else ()):

            def ended(failure: Failure | None, host: str = host) -> None:
                # After a SIGTERM of ours there is none.
                if failure is not None and self.running and not self._ending:
                    self.callbacks.failed(dataclasses.replace(failure, host=host, process="agent"))

            tree, readers = self.record.tree(host), local.readers_per_host(self.spec)
            for local_rank in range(readers):  # ranks look for their own folder as soon as they start
                pipes.folder(tree.data, local_rank, readers).mkdir(mode=0o700, exist_ok=True)
            words = ["--base-dir", str(tree.base), "--channels", str(channels), "--host", host]
            words += ["--hosts", str(len(self.spec.hosts)), "--number", str(number), "--ranks", str(readers)]
            pid = self._run_agent(["pipe", *words], ended, host)
            if pid is not None:
                self._feeders.add(pid)

    def _end_feeders(self) -> None:
        """Nobody reads any more."""
        for pid in self._feeders & self._helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._feeders.clear()

    def _sync_arguments(self) -> list[str]:
        folder = str(self.record.tree(self.spec.hosts[0]).checkpoints.resolve())
        return ["--dir", folder, "--uri", local.synced_checkpoints(self.spec) or "", "--host", self.spec.hosts[0]]

    def _start_sync(self) -> None:
        """Start the agent that brings checkpoints to S3, for all attempts; it ends when its standard input does."""
        if self._sync is not None or local.synced_checkpoints(self.spec) is None:
            return
        read_end, self._sync_input = os.pipe()

        def ended(failure: Failure | None) -> None:
            self._sync, self._sync_failure = None, failure
            if self._sync_waiting is not None:
                self._sync_waiting(failure)
            elif failure is not None and self.running:
                self.callbacks.failed(failure)

        try:
            self._sync = self._run_agent(["sync", "up", *self._sync_arguments()], ended, stdin=read_end)
        finally:
            os.close(read_end)
        if self._sync is not None:
            self._helpers.discard(self._sync)  # it outlives an end without grace, until everything is up

    def save_checkpoints(self, done: Callable[[Failure | None], None]) -> None:
        """Have the rest of the checkpoints uploaded."""
        if self._sync is None:
            done(self._sync_failure)
            return
        self._sync_waiting = done
        os.close(self._sync_input)
        self._sync_input = -1

    def _run_agent(
        self,
        arguments: list[str],
        done: Callable[[Failure | None], None],
        host: str | None = None,
        stdin: int | None = None,
    ) -> int | None:
        """Run the host agent, its words into the log of a host (the first), its last line as the reason if it fails.

        Returns:
            Its pid; None if it could not be started.
        """
        host = host or self.spec.hosts[0]
        read_end, write_end = os.pipe()
        try:
            pid = processes.spawn(
                [self.options.python, "-I", os.path.join(self._package, "__main__.py"), "agent", *arguments],
                env=dict(os.environ),
                cwd=self.record.path,  # the last toolkit removes the runtime folder
                stdin=stdin,
                stdout=write_end,
                stderr=write_end,
            )
        except OSError as error:
            os.close(read_end)
            done(_configuration(f"the host agent could not be started: {error}"))
            return None
        finally:
            os.close(write_end)
        self._helpers.add(pid)
        said = bytearray()

        def readable() -> None:
            data = os.read(read_end, _READ_SIZE)
            if data:
                said.extend(data)
                self.callbacks.output(host, data)
            else:
                self.loop.remove_reader(read_end)

        def ended(status: int) -> None:
            self._helpers.discard(pid)
            self.loop.remove_reader(read_end)
            while data := os.read(read_end, _READ_SIZE):
                said.extend(data)
                self.callbacks.output(host, data)
            os.close(read_end)
            if status == 0:
                done(None)
            else:
                lines = said.decode("utf-8", "replace").strip().splitlines()
                done(_configuration(lines[-1] if lines else f"the host agent ended with wait status {status}."))

        self.loop.add_reader(read_end, readable)
        self.loop.on_child(pid, ended)
        return pid

    def _start_hosts(self) -> None:
        self.callbacks.secondary_status("Training", "")
        self._start_sync()
        token = os.urandom(32).hex()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            for index, host in enumerate(self.spec.hosts):
                self._start_host(host, token, listener if index == 0 else None, listener.getsockname())
        except OSError as error:
            self.callbacks.failed(_configuration(f"a host could not be started: {error}", Cause.LAUNCH))
        finally:
            listener.close()

    def _start_host(self, host: str, token: str, listener: socket.socket | None, address: tuple[str, int]) -> None:
        self._runtime.mkdir(mode=0o700, exist_ok=True)  # the toolkits of an earlier attempt may have tidied it away
        runtime = self._runtime / host
        runtime.mkdir(mode=0o700, exist_ok=True)
        lifeline_read, lifeline_write = os.pipe()
        output_read, output_write = os.pipe()
        env = {
            **os.environ,
            **config.host_config(self.spec, host).environment,
            variables.BASE_DIR: str(self.record.tree(host).base),
            variables.JOB_NAME: self.spec.name,
            variables.ATTEMPT: str(self._attempt),
            variables.CONTROL_ADDRESS: f"{address[0]}:{address[1]}",
            variables.JOB_TOKEN: token,
            variables.RUNTIME_DIR: str(runtime),
            variables.LIFELINE_FD: str(lifeline_read),
            variables.STOP_GRACE: f"{self.options.stop_grace:g}",
            variables.START_TIMEOUT: f"{self.options.start_timeout:g}",
            variables.SHARED_MACHINE: "1",
            variables.UMASK: f"{self.umask:o}",
            variables.JOB_MARK: self.spec.name,
        }
        passed = [lifeline_read]
        if listener is not None:
            env[variables.CONTROL_FD] = str(listener.fileno())
            passed.append(listener.fileno())
        try:
            pid = processes.spawn(
                [self.options.python, "-I", os.path.join(self._package, "__main__.py"), "train"],
                env=env,
                cwd=runtime,
                stdout=output_write,
                stderr=output_write,
                pass_fds=passed,
                death_signal=0,  # the lifeline tells it: it has to end what it started first
                new_session=True,
            )
        except OSError:
            os.close(lifeline_write)
            os.close(output_read)
            raise
        finally:
            os.close(lifeline_read)
            os.close(output_write)
        self._lifelines.append(lifeline_write)
        process = _HostProcess(host=host, pid=pid, output=output_read)
        self._hosts[host] = process
        self.callbacks.output(host, b"")  # from here on it has to show that it is alive
        os.set_blocking(output_read, False)
        self.loop.add_reader(output_read, lambda: self._readable(process))
        self.loop.on_child(pid, lambda status: self._host_ended(process, status))

    # --- following ---

    def _readable(self, process: _HostProcess) -> None:
        self._read(process)

    def _read(self, process: _HostProcess) -> bool:
        if process.output is None:
            return False
        try:
            data = os.read(process.output, _READ_SIZE)
        except BlockingIOError:
            return False
        if data:
            self.callbacks.output(process.host, data)
            return True
        self._close_output(process)
        return False

    def _close_output(self, process: _HostProcess) -> None:
        if process.output is not None:
            self.loop.remove_reader(process.output)
            os.close(process.output)
            process.output = None

    def _host_ended(self, process: _HostProcess, status: int) -> None:
        exit_code, killed_by = processes.decode_status(status)
        process.ended = True
        if killed_by is not None:
            self._kill_orphans()
        while self._read(process):
            pass
        self._close_output(process)
        if not self.running:
            self._end_feeders()
        failure = None
        if killed_by is not None and not self._ending:
            failure = Failure(
                cause=Cause.PROCESS,
                message=f"the host's training process was killed by {signal.Signals(killed_by).name}.",
                host=process.host,
                process="toolkit",
                signal=killed_by,
            )
        self.callbacks.host_ended(HostEnd(host=process.host, exit_code=exit_code, signal=killed_by, failure=failure))

    def _kill_orphans(self) -> None:
        """End what a killed toolkit left behind: it was adopted by us, its subreaper."""
        known = {process.pid for process in self._hosts.values() if not process.ended} | self._helpers | self._syncing
        self.loop.end_descendants(spare=known | self.protected)

    # --- ending ---

    def stop(self) -> None:
        """SIGTERM to every toolkit; it passes it on and waits for the scripts."""
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """SIGINT to every toolkit: it ends everything at once. What is left after half a second is killed."""
        self._ending = True
        self._signal(signal.SIGINT)
        for pid in self._helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.loop.call_later(0.5, self._kill_all)

    def _kill_all(self) -> None:
        if self.running:
            self.loop.end_descendants(spare=self.protected | self._syncing)

    @property
    def _syncing(self) -> set[int]:
        return {self._sync} if self._sync is not None else set()

    def _signal(self, number: int) -> None:
        for process in self._hosts.values():
            if not process.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def collect_outputs(self) -> None:
        """Bring the rest of the checkpoints, then run the host agent over the hosts' trees, if they hold anything."""
        self.save_checkpoints(self._pack)

    def _pack(self, unsaved: Failure | None) -> None:
        trees = [self.record.tree(host) for host in self.spec.hosts]
        if not any(_has_entries(folder) for tree in trees for folder in (tree.model, tree.output_data)):
            self.callbacks.outputs_collected(unsaved)
            return
        arguments = ["collect"]
        for tree in trees:
            arguments += ["--base-dir", str(tree.base)]
        self._run_agent(
            [*arguments, "--output", local.output_uri(self.spec)],
            lambda failure: self.callbacks.outputs_collected(failure or unsaved),
        )

    def _close_lifelines(self) -> None:
        for fd in self._lifelines:
            os.close(fd)
        self._lifelines.clear()

    def cleanup(self) -> None:
        """Remove the sockets and session files, and the links to the data cache: a record must not keep its bytes."""
        self._close_lifelines()
        self._unmount()
        for channel in local.downloaded(self.spec):
            for host in self.spec.hosts:
                shutil.rmtree(self.record.tree(host).channel(channel), ignore_errors=True)
        shutil.rmtree(self._runtime, ignore_errors=True)
        for folder in Path("/dev/shm").glob(f"{self._runtime.name}-*"):  # of toolkits that were killed
            shutil.rmtree(folder, ignore_errors=True)


def write_tree(record: JobRecord, spec: TrainingJobSpec, host: str) -> None:
    """Write a host's file tree under the record: folders, configuration files, and the link to the checkpoints.

    Raises:
        OSError: it cannot be written.
    """
    tree = record.tree(host)
    for directory in (tree.config, tree.data, tree.model, tree.output_data):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, text in config.host_config(spec, host).files(tree).items():
        Path(path).write_text(text, encoding="utf-8")
    if not tree.checkpoints.is_symlink():
        # One folder for all hosts, as checkpoints synchronised with one S3 prefix would be.
        target = local.checkpoint_dir(spec) or record.checkpoints_dir
        target.mkdir(parents=True, exist_ok=True)
        tree.checkpoints.symlink_to(target)


class _HostProcess:
    """A host's toolkit as the supervisor sees it."""

    def __init__(self, *, host: str, pid: int, output: int) -> None:
        self.host = host
        self.pid = pid
        self.output: int | None = output
        self.ended = False


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def _configuration(message: str, cause: Cause = Cause.CONFIGURATION) -> Failure:
    return Failure(cause=cause, message=message)
