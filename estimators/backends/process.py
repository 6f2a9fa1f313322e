"""Hosts as processes on this machine: nothing to install, no root, no containers.

Each host is one ``python -m container train`` with a file tree of its own under the record; the control connection
between them runs over loopback with a token made for the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

import container
from container import launchers
from container.contract import variables
from container.contract.failures import Cause, Failure
from container.system import folders, processes
from container.system.loop import Timer
from container.system.removing import remove_tree
from estimators.backends import config, local
from estimators.backends.agents import HostAgents, problem
from estimators.backends.base import Backend, HostEnd
from estimators.backends.trees import clear_tree, write_tree
from estimators.job.errors import UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec

_READ_SIZE = 1 << 18


class ProcessBackend(Backend):
    """Runs the hosts of a job as processes of this machine; see :class:`estimators.backends.base.Backend`."""

    name = "local_process"
    elastic = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package = str(Path(next(iter(container.__path__))).resolve())
        self._runtime = folders.make()
        self._hosts: dict[str, _HostProcess] = {}
        self._agents = HostAgents(self)
        self._token = ""
        self._kill_timer: Timer | None = None
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

    @property
    def _facts(self) -> config.BackendFacts:
        return config.BackendFacts(instance_type=self.options.asked_instance_type)

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Write every host's files, bring the inputs, start the toolkits."""
        self._attempt = attempt
        self._ending = False
        self._close_lifelines()
        self._hosts.clear()
        if self._kill_timer is not None:
            self._kill_timer.cancel()  # it was for what an earlier attempt left
        try:
            for host in self.spec.hosts:
                if attempt:
                    clear_tree(self.record, host)
                write_tree(self.record, self.spec, host, self._facts)
            self._agents.bring(attempt, self._start_hosts)
        except OSError as error:
            self.callbacks.failed(problem(f"the job's files could not be written: {error}"))

    def _start_hosts(self) -> None:
        self.callbacks.secondary_status("Training", "")
        self._agents.start_sync()
        token = self._token = os.urandom(32).hex()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            for index, host in enumerate(self.spec.hosts):
                self._start_host(host, token, listener if index == 0 else None, listener.getsockname())
        except OSError as error:
            self.callbacks.failed(problem(f"a host could not be started: {error}", Cause.LAUNCH))
        finally:
            listener.close()

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """Loopback: nobody else on the network has a part in it."""
        return "127.0.0.1", "lo"

    def add_host(self, host: str) -> None:
        """Write its files, bring its inputs, start its toolkit."""

        def start() -> None:
            try:
                self._start_host(host, self._token, None, ("127.0.0.1", 0))
            except OSError as error:
                self.callbacks.failed(problem(f"{host} could not be started: {error}", Cause.LAUNCH))

        try:
            write_tree(self.record, self.spec, host, self._facts)
            self._agents.bring_to(host, start)
        except OSError as error:
            self.callbacks.failed(problem(f"the files of {host} could not be written: {error}"))

    def _start_host(self, host: str, token: str, listener: socket.socket | None, address: tuple[str, int]) -> None:
        self._runtime.mkdir(mode=0o700, exist_ok=True)  # the toolkits of an earlier attempt may have tidied it away
        runtime = self._runtime / host
        for leftover in (runtime, Path("/dev/shm", f"{self._runtime.name}-{host}")):
            remove_tree(leftover, ignore_errors=True)  # of a toolkit of an earlier attempt that was killed
        runtime.mkdir(mode=0o700)
        lifeline_read, lifeline_write = os.pipe()
        output_read, output_write = os.pipe()
        env = {
            **config.caller_environment(os.environ),
            **config.host_config(self.spec, host, self._facts).environment,
            variables.BASE_DIR: str(self.record.tree(host).base),
            variables.JOB_NAME: self.spec.name,
            variables.ATTEMPT: str(self._attempt),
            variables.CONTROL_ADDRESS: f"{address[0]}:{address[1]}",
            variables.JOB_TOKEN: token,
            variables.RUNTIME_DIR: str(runtime),
            variables.LIFELINE_FD: str(lifeline_read),
            variables.STOP_GRACE: f"{self.options.longest_grace:g}",
            variables.START_TIMEOUT: f"{self.options.start_timeout:g}",
            variables.SHARED_MACHINE: "1",
            variables.UMASK: f"{self.umask:o}",
            variables.JOB_MARK: self.spec.name,
            **config.failure_environment(self.spec, self.options, self._attempt),
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
                new_session=launchers.of(self.spec.strategy).own_sessions,
                new_group=True,
            )
        except OSError:
            os.close(lifeline_write)
            os.close(output_read)
            raise
        finally:
            os.close(lifeline_read)
            os.close(output_write)
        process = _HostProcess(host=host, pid=pid, output=output_read, lifeline=lifeline_write)
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
        process.close_lifeline()
        if killed_by is not None:
            self._kill_orphans()
        while self._read(process):
            pass
        self._close_output(process)
        self._agents.host_ended(process.host)
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
        known = {process.pid for process in self._hosts.values() if not process.ended} | self._agents.pids
        self.loop.end_descendants(spare=known | self.protected)

    # --- ending ---

    def stop(self) -> None:
        """SIGTERM to every toolkit; it passes it on and waits for the scripts."""
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """SIGINT to every toolkit: it ends everything at once. What is left after half a second is killed."""
        self._ending = True
        self._signal(signal.SIGINT)
        self._agents.end_now()
        self._kill_timer = self.loop.call_later(0.5, self._kill_all)

    def say(self, host: str, words: bytes) -> None:
        """A word on the host's lifeline."""
        process = self._hosts.get(host)
        if process is not None and process.lifeline is not None and not process.ended:
            with contextlib.suppress(OSError):
                os.write(process.lifeline, words)

    def kill_host(self, host: str) -> None:
        """SIGKILL to the host's toolkit; what it leaves behind is ours to end."""
        if (process := self._hosts.get(host)) is not None and not process.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        if self.running:
            self.loop.end_descendants(spare=self.protected | self._agents.syncing)

    def _signal(self, number: int) -> None:
        for process in self._hosts.values():
            if not process.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def collect_outputs(self) -> None:
        """Bring the rest of the checkpoints, then pack what the hosts' trees hold."""
        self._agents.collect(self.callbacks.outputs_collected)

    def _close_lifelines(self) -> None:
        for process in self._hosts.values():
            process.close_lifeline()

    def cleanup(self) -> None:
        """Remove the sockets and session files, and what the agents made."""
        self._close_lifelines()
        self._agents.cleanup()
        remove_tree(self._runtime, ignore_errors=True)
        for folder in Path("/dev/shm").glob(f"{self._runtime.name}-*"):  # of toolkits that were killed
            remove_tree(folder, ignore_errors=True)


class _HostProcess:
    """A host's toolkit as the supervisor sees it."""

    def __init__(self, *, host: str, pid: int, output: int, lifeline: int) -> None:
        self.host = host
        self.pid = pid
        self.output: int | None = output
        self.lifeline: int | None = lifeline
        self.ended = False

    def close_lifeline(self) -> None:
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
