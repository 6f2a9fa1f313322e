"""What SageMaker's platform does for a job's hosts, done for the local backends by ``python -m container agent``.

The agents are children of the supervisor, beside the hosts: they bring the inputs, feed Pipe mode, serve FastFile
mode, keep checkpoints in step with S3, and pack the outputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import container
from container import launchers
from container.contract import pipes
from container.contract.failures import Cause, Failure, describe_end
from container.contract.wire import Event
from container.system import processes
from container.system.loop import Timer
from estimators.backends import local, trees
from estimators.backends.base import Backend
from estimators.backends.config import input_mode
from estimators.job.request import TrainingJobSpec

_READ_SIZE = 1 << 18
#: How often it is looked whether a host has begun to write intermediate output, in seconds.
_LOOK_S = 1.0

Done = Callable[[Failure | None], None]


class HostAgents:
    """The agents of one job. All methods return at once; the loop does the rest.

    Args:
        backend: Whose job it is, and whether a host of it runs.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loop = backend.loop
        self._record = backend.record
        self._options = backend.options
        self._callbacks = backend.callbacks
        self._package = str(Path(next(iter(container.__path__))).resolve())
        self._ending = False
        self._helpers: set[int] = set()
        self._feeders: dict[str, int] = {}  # host -> pid
        self._awaiting_pipes = False
        self._channels = self._record.path / "channels.json"
        self._mounts = self._record.path / "mounts"
        self._mounts_input = -1
        self._sync: int | None = None
        self._sync_input = -1
        self._sync_failure: Failure | None = None
        self._sync_waiting: Done | None = None
        self._intermediate = _Intermediate(self)
        self._relay_input = -1

    @property
    def _spec(self) -> TrainingJobSpec:
        return self._backend.spec  # an attempt may have fewer hosts than the one before

    @property
    def pids(self) -> set[int]:
        """The agents that run."""
        return self._helpers | self.syncing

    @property
    def syncing(self) -> set[int]:
        """Those that bring what is new to S3: they outlive an end without grace, until everything is up."""
        return {*self._intermediate.pids, *([self._sync] if self._sync is not None else [])}

    # --- before the hosts ---

    def bring(self, attempt: int, ready: Callable[[], None]) -> None:
        """Bring checkpoints and inputs for an attempt, then call ``ready``; failures are told to the supervisor."""
        self._ending = False
        self.end_feeders()
        if attempt == 0 and local.synced_checkpoints(self._spec) is not None:
            self._callbacks.secondary_status("Downloading", "Restoring the checkpoints.")
            self._run(["sync", "down", *self._sync_arguments()], self._then(lambda: self._bring_inputs(ready)))
        else:
            self._bring_inputs(ready)

    def _then(self, following: Callable[[], None]) -> Done:
        def done(failure: Failure | None) -> None:
            if self._ending:
                return
            if failure is not None:
                self._callbacks.failed(failure)
            else:
                following()

        return done

    def _bring_inputs(self, ready: Callable[[], None]) -> None:
        if not self._spec.inputs:
            ready()
            return
        self._callbacks.secondary_status("Downloading", "Bringing the input channels.")
        self._channels.write_text(json.dumps(local.agent_channels(self._spec)), encoding="utf-8")
        places = [argument for host in self._spec.hosts for argument in ("--base-dir", self._base(host))]
        self._run(["prepare", *places, *self._channels_argument()], self._then(lambda: self._mount(places, ready)))

    def bring_to(self, host: str, ready: Callable[[], None]) -> None:
        """Bring the inputs to a host that joins a running job, then call ``ready``. Nothing is mounted for it."""
        if not self._spec.inputs:
            ready()
            return

        def brought() -> None:
            if local.has_pipes(self._spec):
                self._start_feeder(host, 0, 1)  # no channel of a job that hosts join is dealt out to hosts
            ready()

        place = ["--base-dir", self._base(host)]
        self._run(["prepare", *place, *self._channels_argument()], self._then(brought), host)

    def _channels_argument(self) -> list[str]:
        return ["--channels", str(self._channels), *(["--everybody"] if self._backend.other_users else [])]

    def _base(self, host: str) -> str:
        return str(self._record.tree(host).base)

    def _mount(self, places: list[str], ready: Callable[[], None]) -> None:
        """Start the agent of the channels in FastFile mode; go on when everything is mounted."""

        def mounted() -> None:
            self._start_feeders()
            self._await_pipes(ready)

        if not local.mounted(self._spec) or self._mounts_input >= 0:
            mounted()
            return
        done = self._mounts / "ready"
        read_end, self._mounts_input = os.pipe()

        def ended(failure: Failure | None) -> None:
            if not self._ending and (self._backend.running or not done.exists()):
                self._callbacks.failed(failure or problem("the agent of the FastFile channels ended early."))

        def look() -> None:
            if done.exists():
                mounted()
            elif not self._ending:
                self._loop.call_later(0.02, look)

        arguments = ["mount", *places, "--channels", str(self._channels), "--mounts", str(self._mounts)]
        if self._backend.other_users:
            arguments.append("--everybody")
        try:
            self._run(arguments, ended, stdin=read_end)
        finally:
            os.close(read_end)
        look()

    def _start_feeders(self) -> None:
        """Start the agents that feed the channels in Pipe mode, one for each host, beside the toolkits."""
        for number, host in enumerate(self._spec.hosts if local.has_pipes(self._spec) else ()):
            self._start_feeder(host, number, len(self._spec.hosts))

    def _start_feeder(self, host: str, number: int, hosts: int) -> None:
        """Make the first FIFOs of a host, the ``number``-th of ``hosts``, and start the agent that feeds them."""

        def ended(failure: Failure | None) -> None:
            # After a SIGTERM of ours there is none.
            if failure is not None and (self._backend.running or self._awaiting_pipes) and not self._ending:
                self._awaiting_pipes = False
                self._callbacks.failed(dataclasses.replace(failure, host=host, process="agent"))

        tree, readers = self._record.tree(host), local.readers_per_host(self._spec)
        for local_rank in range(readers):  # ranks look for their own folder as soon as they start
            place = pipes.folder(tree.data, local_rank, readers)
            place.mkdir(mode=0o700, exist_ok=True)
            if self._backend.other_users and readers > 1:
                place.chmod(0o755)  # the record around it is the user's only
            for channel in local.piped(self._spec):  # scripts open the first one as soon as they start
                first = pipes.fifo(place, channel, 0)
                first.unlink(missing_ok=True)
                os.mkfifo(first, 0o600)
                if self._backend.other_users:
                    first.chmod(0o666)
        words = ["--base-dir", str(tree.base), "--channels", str(self._channels), "--host", host]
        words += ["--hosts", str(hosts), "--number", str(number), "--ranks", str(readers)]
        if self._backend.other_users:
            words.append("--everybody")
        # Should the supervisor be killed, it still removes its FIFOs.
        pid = self._run(["pipe", *words], ended, host, death_signal=signal.SIGTERM)
        if pid is not None:
            self._feeders[host] = pid

    def _await_pipes(self, ready: Callable[[], None]) -> None:
        """Go on when the first FIFOs are there: as on SageMaker, a script may open them at once."""
        names = [channel.name for channel in self._spec.inputs if input_mode(self._spec, channel) == "Pipe"]
        readers = local.readers_per_host(self._spec)
        places = [
            pipes.folder(self._record.tree(host).data, local_rank, readers)
            for host in self._spec.hosts
            for local_rank in range(readers)
        ]
        first = [pipes.fifo(place, name, 0) for name in names for place in places]
        self._awaiting_pipes = bool(first)

        def look() -> None:
            if self._ending or (first and not self._awaiting_pipes):
                return
            if all(path.exists() for path in first):
                self._awaiting_pipes = False
                ready()
            else:
                self._loop.call_later(0.01, look)

        look()

    # --- beside them ---

    def start_sync(self) -> None:
        """Start what brings checkpoints and intermediate output to S3, for all attempts."""
        self._intermediate.start()
        if self._sync is not None or local.synced_checkpoints(self._spec) is None:
            return
        read_end, self._sync_input = os.pipe()

        def ended(failure: Failure | None) -> None:
            self._sync, self._sync_failure = None, failure
            if self._sync_waiting is not None:
                self._sync_waiting(failure)
            elif failure is not None and self._backend.running:
                self._callbacks.failed(failure)

        try:
            self._sync = self._run(["sync", "up", *self._sync_arguments()], ended, stdin=read_end)
        finally:
            os.close(read_end)
        if self._sync is not None:
            self._helpers.discard(self._sync)

    def _sync_arguments(self) -> list[str]:
        folder = str(trees.checkpoints(self._record, self._spec).resolve())
        return ["--dir", folder, "--uri", local.synced_checkpoints(self._spec) or "", "--host", self._spec.hosts[0]]

    def relay(self, servers: Mapping[int, str], ended: Callable[[], None]) -> bool:
        """Pass on what connects to listening sockets, until the job is over.

        Args:
            servers: The sockets' descriptors -> where to: ``host:port``.
            ended: Called when it has ended.

        Returns:
            Whether it was started.
        """
        self._end_relay()
        read_end, write_end = os.pipe()

        def over(failure: Failure | None) -> None:
            if self._relay_input == write_end:
                self._end_relay()
            ended()

        words = [word for fd, to in servers.items() for word in ("--fd", str(fd), "--to", to)]
        self._relay_input = write_end
        try:
            return self._run(["relay", *words], over, stdin=read_end, pass_fds=tuple(servers)) is not None
        finally:
            os.close(read_end)

    def _end_relay(self) -> None:
        if self._relay_input >= 0:
            os.close(self._relay_input)
            self._relay_input = -1

    def warn(self, text: str) -> None:
        """Tell the user of something."""
        host = self._spec.hosts[0]
        self._callbacks.output(host, Event(kind="warning", host=host, data={"message": text}).to_line())

    # --- after them ---

    def end_feeders(self) -> None:
        """Nobody reads any more."""
        for host in list(self._feeders):
            self._end_feeder(host)

    def host_ended(self, host: str) -> None:
        """Nobody reads on a host any more.

        Where hosts do not come and go, feeders stay until all have ended: what one says of its data may be the reason.
        """
        if not self._backend.running:
            self.end_feeders()
        elif launchers.of(self._spec.strategy).membership_changes:
            self._end_feeder(host)

    def _end_feeder(self, host: str) -> None:
        pid = self._feeders.pop(host, None)
        if pid in self._helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _save_checkpoints(self, done: Done) -> None:
        """Have the rest of the checkpoints uploaded."""
        if self._sync is None:
            done(self._sync_failure)
            return
        self._sync_waiting = done
        os.close(self._sync_input)
        self._sync_input = -1

    def collect(self, done: Done) -> None:
        """Bring the rest of the intermediate output and of the checkpoints, then pack the trees' models and outputs."""

        def pack() -> None:
            self._save_checkpoints(lambda unsaved: self._pack(unsaved, done))

        self._intermediate.finish(pack)

    def _pack(self, unsaved: Failure | None, done: Done) -> None:
        hosts = [self._record.tree(host) for host in self._spec.hosts]
        if not any(_has_entries(folder) for tree in hosts for folder in (tree.model, tree.output_data)):
            done(unsaved)
            return
        arguments = ["collect"]
        for tree in hosts:
            arguments += ["--base-dir", str(tree.base)]
        arguments += ["--output", local.output_uri(self._spec)]
        self._run(arguments, lambda failure: done(failure or unsaved))

    def end_now(self) -> None:
        """End all but the uploads."""
        self._ending = True
        for pid in self._helpers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cleanup(self) -> None:
        """Remove the mounts, and the hosts' copies of their data: a record must not keep those bytes."""
        self._intermediate.cancel()
        self._end_relay()
        self._unmount()
        trees.remove_inputs(self._record, self._spec)
        self._channels.unlink(missing_ok=True)
        self._clear_pipes()

    def _clear_pipes(self) -> None:
        """Remove what an agent that was killed has left of its FIFOs: whoever reads the record would wait for ever."""
        readers = local.readers_per_host(self._spec) if local.has_pipes(self._spec) else 0
        for host in self._record.hosts if readers else ():
            for local_rank in range(readers):
                place = pipes.folder(self._record.tree(host).data, local_rank, readers)
                for channel in local.piped(self._spec):
                    pipes.clear(place, channel)

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

    def _run(
        self,
        arguments: list[str],
        done: Done,
        host: str | None = None,
        stdin: int | None = None,
        death_signal: int = signal.SIGKILL,
        pass_fds: Sequence[int] = (),
    ) -> int | None:
        """Run the host agent, its words into the log of a host (the first), its last line as the reason if it fails.

        One that gets another signal than SIGKILL at the supervisor's end has it blocked from its start, to wait for it.

        Returns:
            Its pid; None if it could not be started.
        """
        host = host or self._spec.hosts[0]
        read_end, write_end = os.pipe()
        try:
            pid = processes.spawn(
                [self._options.python, "-I", os.path.join(self._package, "__main__.py"), "agent", *arguments],
                env=dict(os.environ),
                cwd=self._record.path,  # the last toolkit removes the runtime folder
                stdin=stdin,
                stdout=write_end,
                stderr=write_end,
                death_signal=death_signal,
                blocked=() if death_signal == signal.SIGKILL else (death_signal,),
                pass_fds=pass_fds,
            )
        except OSError as error:
            os.close(read_end)
            done(problem(f"the host agent could not be started: {error}"))
            return None
        finally:
            os.close(write_end)
        self._helpers.add(pid)
        said = bytearray()

        def readable() -> None:
            data = os.read(read_end, _READ_SIZE)
            if data:
                said.extend(data)
                self._callbacks.output(host, data)
            else:
                self._loop.remove_reader(read_end)

        def ended(status: int) -> None:
            self._helpers.discard(pid)
            self._loop.remove_reader(read_end)
            while data := os.read(read_end, _READ_SIZE):
                said.extend(data)
                self._callbacks.output(host, data)
            os.close(read_end)
            if status == 0:
                done(None)
            else:
                lines = said.decode("utf-8", "replace").strip().splitlines()
                code = os.waitstatus_to_exitcode(status)
                end = describe_end(code, None) if code >= 0 else describe_end(None, -code)
                # One that was killed had not come to say why: what it said last was something else.
                done(problem(lines[-1] if lines and code >= 0 else f"the host agent {end}."))

        self._loop.add_reader(read_end, readable)
        self._loop.on_child(pid, ended)
        return pid


class _Intermediate:
    """Brings what hosts write into ``output/intermediate`` to S3, while they run: an agent for each that writes there.

    Most write nothing, and cost a look now and then.

    Args:
        agents: The job's.
    """

    def __init__(self, agents: HostAgents) -> None:
        self._agents = agents
        self._running: dict[str, int] = {}  # host -> pid
        self._inputs: dict[str, int] = {}  # host -> its agent's standard input, whose end is the agent's last look
        self._timer: Timer | None = None
        self._waiting: Callable[[], None] | None = None

    @property
    def pids(self) -> set[int]:
        return set(self._running.values())

    def start(self) -> None:
        """Look from now on."""
        if self._timer is None and local.synced_intermediate(self._agents._spec) is not None:
            self._timer = self._agents._loop.call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._look()
        self._timer = self._agents._loop.call_later(_LOOK_S, self._look_again)

    def _look(self) -> None:
        for host in self._agents._spec.hosts:
            if host not in self._running and _has_entries(self._agents._record.tree(host).output_intermediate):
                self._start(host)

    def _start(self, host: str) -> None:
        agents = self._agents
        read_end, write_end = os.pipe()

        def ended(failure: Failure | None) -> None:
            self._running.pop(host, None)
            self._end_input(host)
            if failure is not None:  # as with SageMaker's toolkit, the job is not lost for that
                warning = Event(kind="warning", host=host, data={"message": failure.message})
                agents._callbacks.output(host, warning.to_line())
            self._go_on()

        folder = str(agents._record.tree(host).output_intermediate)
        uri = local.synced_intermediate(agents._spec) or ""
        words = ["sync", "up", "--dir", folder, "--uri", uri, "--host", host, "--what", "intermediate output"]
        try:
            pid = agents._run(words, ended, host, stdin=read_end)
        finally:
            os.close(read_end)
        if pid is None:
            os.close(write_end)
            return
        agents._helpers.discard(pid)
        self._running[host], self._inputs[host] = pid, write_end

    def finish(self, done: Callable[[], None]) -> None:
        """Every host has ended: bring the rest, then go on."""
        if self._timer is not None:
            self.cancel()
            self._look()
        self._waiting = done
        for host in list(self._inputs):
            self._end_input(host)
        self._go_on()

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_input(self, host: str) -> None:
        if host in self._inputs:
            os.close(self._inputs.pop(host))

    def _go_on(self) -> None:
        if self._waiting is not None and not self._running:
            done, self._waiting = self._waiting, None
            done()


def problem(message: str, cause: Cause = Cause.CONFIGURATION) -> Failure:
    """A failure of the job's settings or surroundings, not of its processes."""
    return Failure(cause=cause, message=message)


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
