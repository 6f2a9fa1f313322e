"""Hosts as processes on this machine: nothing to install, no root, no containers.

Each host is one ``python -m container train`` with a file tree of its own under the record; the control connection
between them runs over loopback with a token made for the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import container
from container.contract import variables
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
        try:
            for host in self.spec.hosts:
                write_tree(self.record, self.spec, host)
        except OSError as error:
            self.callbacks.failed(_configuration(f"the job's files could not be written: {error}"))
            return
        if self.spec.inputs:
            self.callbacks.secondary_status("Downloading", "Linking the input channels.")
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
                self._start_hosts()

        self._run_agent(["prepare", *trees, "--channels", str(channels)], prepared)

    def _run_agent(self, arguments: list[str], done: Callable[[Failure | None], None]) -> None:
        """Run the host agent, its words into the log, its last line as the reason if it fails."""
        read_end, write_end = os.pipe()
        try:
            pid = processes.spawn(
                [self.options.python, "-I", os.path.join(self._package, "__main__.py"), "agent", *arguments],
                env=dict(os.environ),
                cwd=self.record.path,  # the last toolkit removes the runtime folder
                stdout=write_end,
                stderr=write_end,
            )
        except OSError as error:
            os.close(read_end)
            done(_configuration(f"the host agent could not be started: {error}"))
            return
        finally:
            os.close(write_end)
        self._helpers.add(pid)
        said = bytearray()

        def readable() -> None:
            data = os.read(read_end, _READ_SIZE)
            if data:
                said.extend(data)
                self.callbacks.output(self.spec.hosts[0], data)
            else:
                self.loop.remove_reader(read_end)

        def ended(status: int) -> None:
            self._helpers.discard(pid)
            self.loop.remove_reader(read_end)
            while data := os.read(read_end, _READ_SIZE):
                said.extend(data)
                self.callbacks.output(self.spec.hosts[0], data)
            os.close(read_end)
            if status == 0:
                done(None)
            else:
                lines = said.decode("utf-8", "replace").strip().splitlines()
                done(_configuration(lines[-1] if lines else f"the host agent ended with wait status {status}."))

        self.loop.add_reader(read_end, readable)
        self.loop.on_child(pid, ended)

    def _start_hosts(self) -> None:
        self.callbacks.secondary_status("Training", "")
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
        known = {process.pid for process in self._hosts.values() if not process.ended} | self._helpers
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
            self.loop.end_descendants(spare=self.protected)

    def _signal(self, number: int) -> None:
        for process in self._hosts.values():
            if not process.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def collect_outputs(self) -> None:
        """Run the host agent over the hosts' trees, if they hold anything."""
        trees = [self.record.tree(host) for host in self.spec.hosts]
        if not any(_has_entries(folder) for tree in trees for folder in (tree.model, tree.output_data)):
            self.callbacks.outputs_collected(None)
            return
        arguments = ["collect"]
        for tree in trees:
            arguments += ["--base-dir", str(tree.base)]
        target = local.output_dir(self.spec)
        self._run_agent([*arguments, "--output", str(target)], self.callbacks.outputs_collected)

    def _close_lifelines(self) -> None:
        for fd in self._lifelines:
            os.close(fd)
        self._lifelines.clear()

    def cleanup(self) -> None:
        """Remove the sockets and session files."""
        self._close_lifelines()
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
