"""Runs a job's hosts as containers, from its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from container import launchers
from container.contract import variables
from container.contract.failures import Cause
from container.contract.layout import success_text
from container.system import folders
from container.system.background import Background
from container.system.connection import BlockingConnection
from container.system.host_machine import gpu_count
from container.system.removing import remove_tree
from container.system.running import Runner
from estimators.backends import local
from estimators.backends.base import Backend, HostEnd, Leftover
from estimators.backends.docker import checking, containers, job_secrets, naming, ownership, warm
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Ended, Engine, ImageFacts
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.docker.exit_status import end_failure
from estimators.backends.docker.head_start import ContainersHeadStart, Handed
from estimators.backends.docker.mounted import MountedPlatform
from estimators.backends.docker.network import Network
from estimators.backends.docker.pooling import Pooling, end_in
from estimators.backends.docker.reapers import Duty, Reapers
from estimators.backends.docker.relays import Relays
from estimators.backends.docker.streams import Frames, Plain
from estimators.backends.hosts.here import LocalHost
from estimators.backends.hosts.platform import PreparationFailed, problem
from estimators.backends.trees import checkpoints
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

_READ_SIZE = 1 << 18
#: How long what a container printed may take to arrive after its end, in seconds.
_LAST_WORDS = 2.0
#: From the word for it to SIGKILL when a job is ended without grace, in seconds.
_KILL_AFTER = 0.5
#: When a job in kept containers loads the engine's SDK, which its beginning does without: seconds from then.
_CONNECT_AFTER = 1.0
#: How much of the end of what a container printed is looked through for the reason, in bytes.
_TAIL = 1 << 16


class DockerBackend(Backend):
    """Runs the hosts of a job as containers; see :class:`estimators.backends.base.Backend`."""

    name = "local"
    elastic = True
    other_users = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._background = Background(self.loop)
        self._runtime = folders.make()
        self._hosts: dict[str, _Container] = {}
        self._runner = Runner(self.loop, os.environ, protected=self.protected)
        self._platform = MountedPlatform(self, containers.facts(self.options))
        self._relays = Relays(self._platform)
        #: The caller's variables that say where AWS is.
        self._aws = containers.aws_settings(os.environ)
        self._engine: Engine | None = None
        self._image = ImageFacts()
        self._network: Network | None = None  # the job's own; kept containers have one already
        self._handed: Handed | None = None  # what the caller makes of these
        self._plans_made: tuple[ContainerPlan, ...] = ()
        self._toolkit = True
        #: What sshd needs in the containers, where a launcher of others wants it.
        self._ssh_files: bytes | None = None
        self._inputs_ready = False
        self._connecting = False  # until the network is there
        self._starting = 0  # containers that are being made
        self._stopping = False
        self._bringing = False  # what the attempt has saved, before its end is told
        self._attempt = 0
        self._ending = False
        self._start_task: asyncio.Task[None] | None = None
        self._reapers = Reapers(self.loop, self.protected, self.record.supervisor_log)
        self._kept = Pooling(self.record, self.spec, self.options)

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Refuse what cannot be: an engine that does not answer, an image that is not there, GPUs without a runtime.

        Raises:
            UnsupportedError: a channel cannot be fed, or there is no GPU runtime.
            EngineError: the engine or the image is not there.
        """
        checking.check(spec, options)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Containers and networks on an engine that Docker's SDK reaches."""
        if importlib.util.find_spec("docker") is None:
            return ()
        from estimators.backends.docker import leftovers

        return leftovers.find()

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """The engine's facts of the job's image."""
        facts = checking.just_seen(containers.image_of(spec))
        return None if facts is None else dataclasses.asdict(facts)

    @classmethod
    def head_start(cls, spec: TrainingJobSpec, record: Path) -> ContainersHeadStart | None:
        """The network, but for kept containers, which have one."""
        return None if spec.resources.keep_alive_s else ContainersHeadStart(spec, record)

    @property
    def running(self) -> bool:
        """Whether a container runs, or is being started."""
        return self._bringing or self._starting > 0 or any(not host.told for host in self._hosts.values())

    @property
    def attempt(self) -> int:
        """The number of this start of the job."""
        return self._attempt

    @property
    def is_ending(self) -> bool:
        """Whether what ends now was told to."""
        return self._ending

    # --- starting ---

    def start(self, attempt: int) -> None:
        """Write the hosts' files and bring the inputs; make the network and, beside it, the containers; start these."""
        self._attempt = attempt
        self._ending = self._stopping = False
        self._inputs_ready = False
        self._start_task = self.loop.start(self._run_attempt())

    async def _run_attempt(self) -> None:
        if self._attempt and self._engine is not None:
            # What an earlier attempt wrote is brought, and removed.
            await self._give_back()
            await self._platform.end_attempt()
        if not self._ending:
            await self._prepare()

    async def _prepare(self) -> None:
        self._hosts.clear()
        self._plans_made = ()
        self._let_go()
        try:
            if self._kept.pool is not None and self._kept.broken:
                self._kept.leave()
                self._engine = None
                self._start_reaper()
            if not self._reapers:
                self._start_reaper()
            if self.handed is not None:  # the caller does this once
                self._handed, self.handed = Handed(self.handed), None
                self._handed.take()
            if self._engine is None:  # the longest part, while the rest is written
                self._connecting = True
                self._background.run(self._connect, self._connected, self._engine_failed)
            if not self._kept:
                job_secrets.write({host: self._runtime / host for host in self.spec.hosts})
        except OSError as error:
            self.callbacks.failed(problem(f"the job's files could not be written: {error}"))
            return
        self._platform.links = bool(self._kept)
        hosts = [LocalHost(self._runner, self, host) for host in self.spec.hosts]
        try:
            await self._platform.prepare(hosts)
        except PreparationFailed as error:
            self._platform.fail(error.failure)
            return
        self._inputs_brought()

    def _start_reaper(self) -> None:
        what = (warm.POOL_LABEL, self._kept.new_path) if self._kept else (containers.RECORD_LABEL, self.record.path)
        self._reapers.start(self._duty(*what))

    def _duty(self, label: str, value: Path) -> Duty:
        record = self.record
        model_dir = containers.local_model_dir(self.spec)
        theirs = (local.checkpoint_dir(self.spec) if local.synced_checkpoints(self.spec) is None else None, model_dir)
        return Duty(
            label=label,
            value=str(value),
            remove=(str(self._runtime),),
            image=containers.image_of(self.spec),
            trees=(*(str(record.tree(host).base) for host in self.spec.hosts), str(record.checkpoints_dir)),
            shared=tuple(str(place) for place in theirs if place is not None),
        )

    def _connect(self) -> tuple[Engine, ImageFacts, bytes | None]:
        engine = Engine(at_once=not self._kept)
        image = self._found_image() or engine.image(containers.image_of(self.spec))
        if self._relayed:
            self._relays.look(engine)
        if self._kept:
            self._kept.find(engine, image, self.spec)
            return engine, image, None
        keys = None
        if job_secrets.wants_sshd(self.spec, self.options, toolkit=containers.runs_toolkit(self.spec, image.labels)):
            keys = job_secrets.ssh_files(self.spec.hosts, image.environment, now=time.time())
        return engine, image, keys

    def _found_image(self) -> ImageFacts | None:
        """What the caller has asked the engine."""
        found = self.record.read_json(self.record.found_file)
        return None if found is None else ImageFacts(**found)

    def _connected(self, result: tuple[Engine, ImageFacts, bytes | None]) -> None:
        self._engine, image, self._ssh_files = result
        self._take_image(image)
        if self._ending or self._kept:
            self._connecting = False
        else:
            self._network = Network(
                self._engine,
                containers.network_of(self.spec),
                containers.labels_of(self.spec, self.record.path),
                internal=bool(self.spec.network_isolation),
                handed=self._handed,
            )
            self._background.run(self._network.make, self._network_made, self._engine_failed)
        if (path := self._kept.found_path) is not None:
            self._reapers.start(self._duty(warm.POOL_LABEL, path))
        self._start_when_ready()

    def _take_image(self, image: ImageFacts) -> None:
        self._image = image
        self._toolkit = containers.runs_toolkit(self.spec, image.labels)

    def _network_made(self, nothing: None) -> None:
        self._connecting = False

    def _engine_failed(self, error: Exception) -> None:
        self._connecting = False
        self._engine = None  # another attempt begins with it
        if not self._ending:
            self.callbacks.failed(problem(str(error), Cause.LAUNCH))

    def _host_failed(self, host: str, error: Exception) -> None:
        """A container could not be made or started: its end is told too, as the others' is waited for."""
        self._starting -= 1
        failure = problem(str(error), Cause.LAUNCH)
        if not self._ending and not launchers.of(self.spec.strategy).membership_changes:
            self.callbacks.failed(failure)
        self.callbacks.host_ended(HostEnd(host=host, exit_code=255, failure=failure))

    def _inputs_brought(self) -> None:
        self._inputs_ready = True
        # What is relayed is known once the engine is connected: there is no start ahead of that.
        if (
            self._handed is not None
            and not self._ending
            and not self._relayed
            and (image := self._found_image()) is not None
        ):
            self._take_image(image)
            if not self._plan():
                return
            self._handed.order(self._plans_made)
        self._start_when_ready()

    def _start_when_ready(self) -> None:
        if self._engine is None or not self._inputs_ready or self._ending:
            return
        engine = self._engine
        self.callbacks.secondary_status("Training", "")
        self._platform.start_syncs()
        if self._kept:
            self._start_in_pool(engine)
            return
        if not self._plans_made and not self._plan():
            return
        self._starting = len(self._plans_made)
        for plan in self._plans_made:
            self._background.run(
                lambda plan=plan: self._make(engine, plan, self._handed),  # type: ignore[misc]
                self._started,
                lambda error, host=plan.host: self._host_failed(host, error),  # type: ignore[misc]
            )

    def _start_in_pool(self, engine: Engine) -> None:
        try:
            starters = self._kept.starters(
                engine, self.spec, attempt=self._attempt, umask=self.umask, aws=self._aws_of_containers()
            )
        except OSError as error:
            self.callbacks.failed(problem(f"the job's files could not be written: {error}"))
            return
        self._starting = len(starters)
        for host, start in starters.items():
            self._background.run(
                lambda host=host, start=start: _Container(host, *start()),  # type: ignore[misc]
                self._started,
                lambda error, host=host: self._host_failed(host, error),  # type: ignore[misc]
            )
        self.loop.call_later(
            _CONNECT_AFTER, lambda: self._background.run(engine.connect, lambda nothing: None, lambda error: None)
        )

    def _plan(self) -> bool:
        """Plan the containers; whether that could be done."""
        try:
            self._plans_made = self._plans()
        except (OSError, ConfigurationError) as error:
            self.callbacks.failed(problem(f"the containers' folders could not be made: {error}"))
            return False
        return True

    def _plans(self) -> tuple[ContainerPlan, ...]:
        record = self.record
        hosts = {host: record.tree(host) for host in self.spec.hosts}
        channels = local.linked(self.spec)
        model_dir = containers.local_model_dir(self.spec)
        if model_dir is not None:
            model_dir.mkdir(parents=True, exist_ok=True)
        if self._keeps_names:
            naming.write(self._runtime / host for host in hosts)
        return containers.plan_containers(
            self.spec,
            self.options,
            record=record.path,
            trees={host: tree.base for host, tree in hosts.items()},
            checkpoints=checkpoints(record, self.spec),
            secrets={host: self._runtime / host for host in hosts},
            inputs={host: containers.channel_mounts(tree.data, channels) for host, tree in hosts.items()},
            attempt=self._attempt,
            umask=self.umask,
            aws={
                **self._aws_of_containers(),
                **job_secrets.credential_variables(self._runtime / self.spec.hosts[0]),
            },
            toolkit=self._toolkit,
            gpus=gpu_count(),
        )

    @property
    def _relayed(self) -> bool:
        """Whether containers reach a server of this machine's by an agent: not those that are to reach nothing."""
        return self._relays.wanted(self._aws) and not self.spec.network_isolation

    def _aws_of_containers(self) -> dict[str, str]:
        return self._relays.settings(self._aws) if self._relayed else self._aws

    @property
    def _keeps_names(self) -> bool:
        return containers.keeps_names(self.spec, toolkit=self._toolkit)

    def _make(self, engine: Engine, plan: ContainerPlan, handed: Handed | None = None) -> _Container:
        """In a thread: make a container, unless the caller has, attach to it, start it when there is its network."""
        assert self._network is not None
        made = handed.container(plan.host) if handed is not None else None
        if made is None:
            if self._ending:
                raise EngineError("the job has ended in the meantime")
            made = self._network.beside(lambda: engine.create(plan))
        if self._ssh_files is not None:
            engine.put(made, self._ssh_files)
        stream = engine.attach(made, stdin=plan.lifeline)
        try:
            self._network.wait()
            if self._ending:
                raise EngineError("the job has ended in the meantime")
            engine.start(made, plan)
        except EngineError:
            stream.close()
            raise
        if self._keeps_names:
            with contextlib.suppress(EngineError, OSError):  # while it runs the engine knows its name
                if address := engine.address_in(plan.network, made):
                    naming.add([self._runtime / host for host in self.spec.hosts], plan.host, address)
        return _Container(plan.host, made, stream)

    def _started(self, host: _Container) -> None:
        self._starting -= 1
        assert self._engine is not None
        engine = self._engine
        self._hosts[host.name] = host
        self.callbacks.output(host.name, b"")
        host.stream.setblocking(False)
        self.loop.add_reader(host.stream.fileno(), lambda: self._readable(host))
        if host.control is None:
            self._await_end(host, lambda: engine.wait(host.id))
        if self._ending:
            self._kill(host, "SIGKILL")
        elif self._stopping:  # it was not there yet to be told
            self._stop(host)

    def _await_end(self, host: _Container, wait: Callable[[], Ended]) -> None:
        self._background.run(
            wait,
            lambda ended: self._container_ended(host, ended),
            lambda error: self._container_ended(
                host, Ended(exit_code=255, error=f"the connection to the engine was lost while the job ran: {error}")
            ),
        )

    # --- hosts that come and go ---

    def meeting_place(self) -> tuple[str, str]:
        """This machine as the containers see it: the gateway of their network."""
        assert self._engine is not None
        return self._engine.gateway(containers.network_of(self.spec)), containers.INTERFACE

    def add_host(self, host: str) -> None:
        """Write its files, bring its inputs, start its container."""

        try:
            job_secrets.write({host: self._runtime / host})
        except (OSError, ConfigurationError) as error:
            self.callbacks.failed(problem(f"the files of {host} could not be written: {error}"))
            return
        self.loop.start(self._start_further(host))

    async def _start_further(self, host: str) -> None:
        try:
            await self._platform.prepare([LocalHost(self._runner, self, host)], joins=True)
        except PreparationFailed as error:
            self._platform.fail(error.failure)
            return
        if self._engine is None or self._ending:
            return
        engine = self._engine
        [plan] = [plan for plan in self._plans() if plan.host == host]
        self._starting += 1
        self._background.run(
            lambda: self._make(engine, plan), self._started, lambda error: self._host_failed(host, error)
        )

    # --- following ---

    def _readable(self, host: _Container) -> None:
        self._read(host)

    def _read(self, host: _Container) -> bool:
        """Take what a container printed; whether there may be more."""
        if not host.attached:
            return False
        try:
            data = host.stream.recv(_READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            output = host.frames.feed(data)
            if output:
                host.tail = (host.tail + output)[-_TAIL:]
                self.callbacks.output(host.name, output)
            return True
        self.loop.remove_reader(host.stream.fileno())
        host.attached = False
        host.stream.close()
        if host.ended is None and self._succeeded(host.name):
            # The engine says so a tenth of a second later, when it has taken down the container's network.
            host.ended = Ended(exit_code=0)
        if host.ended is not None:
            self._tell_end(host)
        elif host.control is not None and self._engine is not None:
            engine, control = self._engine, host.control
            self._await_end(host, lambda: end_in(engine, host.id, control))
        return False

    def _succeeded(self, host: str) -> bool:
        """Whether a host's toolkit has said that all went well: the last that it does before it ends."""
        if not self._toolkit or self._ending:
            return False
        try:
            return self.record.tree(host).success_file.read_text(encoding="utf-8") == success_text(self._attempt)
        except (OSError, UnicodeDecodeError):
            return False

    def _container_ended(self, host: _Container, ended: Ended) -> None:
        if host.told:
            return
        host.ended = ended
        self._kept.broken |= ended.out_of_memory or (ended.exit_code >= 128 and ended.exit_code != 128 + signal.SIGTERM)
        while self._read(host):
            pass
        if host.attached:
            self.loop.call_later(_LAST_WORDS, lambda: self._tell_end(host))
        else:
            self._tell_end(host)

    def _tell_end(self, host: _Container) -> None:
        assert host.ended is not None
        if host.told:
            return
        host.told = True
        if host.attached:
            self.loop.remove_reader(host.stream.fileno())
            host.attached = False
            host.stream.close()
        if self.running:
            self._platform.host_ended(host.name)
        else:
            self._platform.end_feeders()
        failure = None
        if not self._ending:
            failure = end_failure(
                host.name, host.ended, host.tail, toolkit=self._toolkit, said=self._reason_of(host.name)
            )
        code = host.ended.exit_code
        killed_by = code - 128 if code == 128 + signal.SIGKILL else None
        end = HostEnd(host=host.name, exit_code=code, signal=killed_by, failure=failure)
        syncs = local.synced_checkpoints(self.spec) is not None or local.synced_intermediate(self.spec) is not None
        if self.running or not syncs:
            self.callbacks.host_ended(end)
            return
        # The attempt has ended: what it has saved is brought before that is told, as a stop after it waits for nothing.
        self._bringing = True
        self.loop.start(self._tell_last_end(end))

    async def _tell_last_end(self, end: HostEnd) -> None:
        await self._give_back()
        await self._platform.bring_saved()
        self._bringing = False
        self.callbacks.host_ended(end)

    def _reason_of(self, host: str) -> str:
        """What a program of others left in ``/opt/ml/output/failure``, SageMaker's place for the reason."""
        if self._toolkit:
            return ""
        try:
            return self.record.tree(host).failure_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    # --- ending ---

    def stop(self) -> None:
        """The word for it on every lifeline, or SIGTERM where an image has not our toolkit."""
        self._stopping = True
        for host in self._hosts.values():
            self._stop(host)

    def _stop(self, host: _Container) -> None:
        if self._toolkit:  # a signal to a first process that has no handler for it yet would be lost; a word waits
            self._say(host, variables.SAY_STOP)
        else:
            self._kill(host, "SIGTERM")

    def say(self, host: str, words: bytes) -> None:
        """A word on the host's lifeline."""
        if self._toolkit and (container := self._hosts.get(host)) is not None:
            self._say(container, words)

    def kill_host(self, host: str) -> None:
        """SIGKILL to the host's container."""
        if (container := self._hosts.get(host)) is not None:
            self._kill(container, "SIGKILL")

    def end_now(self) -> None:
        """The word on which our toolkit ends everything at once; what is left after half a second is killed."""
        self._ending = True
        if self._start_task is not None:
            self._start_task.cancel()
        self._platform.end_agents()
        if self._handed is not None:
            self._handed.close()
        for host in self._hosts.values():
            if self._toolkit:
                self._say(host, variables.SAY_END)
            else:
                self._kill(host, "SIGKILL")
        if self._toolkit:
            hosts = tuple(self._hosts.values())  # not those of a later attempt
            self.loop.call_later(_KILL_AFTER, lambda: self._kill_all(hosts))

    def _kill_all(self, hosts: Sequence[_Container]) -> None:
        for host in hosts:
            self._kill(host, "SIGKILL")

    def _say(self, host: _Container, word: bytes) -> None:
        if host.attached:
            with contextlib.suppress(OSError):
                host.stream.send(word)

    def _kill(self, host: _Container, name: str) -> None:
        engine = self._engine
        if engine is not None and host.ended is None:
            self._kept.broken |= name == "SIGKILL"
            threading.Thread(target=engine.kill, args=(host.id, name), daemon=True).start()

    def collect_outputs(self) -> None:
        """Give the files back to the user, then bring the rest of the checkpoints and pack the outputs."""
        self.loop.start(self._collect())

    async def _collect(self) -> None:
        await self._give_back()
        self.callbacks.outputs_collected(await self._platform.collect())

    async def _give_back(self) -> None:
        """Containers write as root, or as their image's user: what they wrote becomes the calling user's."""
        engine = self._engine
        duty = self._duty(containers.RECORD_LABEL, self.record.path)
        if engine is None:
            return
        try:
            await self._background.call(lambda: ownership.give_back_all(engine, duty, self._image.user))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job's own files are there
            said = f"the owner of the containers' files could not be changed: {error}\n"
            self.callbacks.output(self.spec.hosts[0], said.encode())

    def cleanup(self) -> None:
        """Have the reaper remove the containers and the network; remove the job's own files."""
        self._platform.cleanup()
        started = self._starting == 0 and not self._connecting and self._let_go()
        whole = started and bool(self._hosts) and all(host.told for host in self._hosts.values())
        self._reapers.finish(quiet=started, kept=self._kept.finish(whole=whole))
        remove_tree(self._runtime, ignore_errors=True)

    def _let_go(self) -> bool:
        """Want nothing more of the caller; whether it makes no container any more."""
        if self._handed is None:
            return True
        handed, self._handed = self._handed, None
        idle = handed.idle
        handed.close()
        return idle


class _Container:
    """A host's container, as the supervisor sees it; ``control`` tells how a job ended in one that was there before."""

    def __init__(
        self, name: str, container_id: str, stream: socket.socket, control: BlockingConnection | None = None
    ) -> None:
        self.name = name
        self.id = container_id
        self.stream = stream
        self.control = control
        self.frames: Frames | Plain = Frames() if control is None else Plain()
        self.tail = b""
        self.attached = True
        self.ended: Ended | None = None
        self.told = False
