"""Provide hosts that are containers of a container engine on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container import launchers
from container.contract import variables
from container.contract.environment import Machine
from container.contract.failures import Cause
from container.contract.layout import success_text
from container.system import folders
from container.system.host_machine import cpu_count, gpu_count
from container.system.removing import remove_tree
from container.system.running import Runner
from estimators.backends import local, trees
from estimators.backends.config import toolkit_environment
from estimators.backends.docker import checking, containers, job_secrets, kept, naming, ownership, reaper
from estimators.backends.docker.engine import ContainerEnd, Engine, T, call
from estimators.backends.docker.host import ContainerHost, RunningContainer
from estimators.backends.docker.mounted import MountedPlatform
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.docker.reaper import Duty
from estimators.backends.docker.relays import Relays
from estimators.backends.hosts.platform import PreparationFailed, problem
from estimators.backends.hosts.provider import Host, HostProvider, Leftover, ProvidedJob
from estimators.backends.hosts.remover import Remover
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import TOOLKIT_LABEL
from estimators.backends.placement import ClusterPlacement
from estimators.job import fleets
from estimators.job.errors import FleetfitError
from estimators.job.request import JobOptions, TrainingJobSpec


class DockerProvider(HostProvider):
    """A provider of one container for each host.

    The containers are created for the job, in a network of the job, or they are kept from an earlier job. A pool is a
    set of kept containers with their network.

    Args:
        job: The job, with the functions through which the provider reports to the supervisor.

    Attributes:
        toolkit: Whether our toolkit runs in the containers. The value is valid from the start of the first container.
    """

    name: ClassVar[str] = fleets.CONTAINERS
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.CONTAINERS].capabilities

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job)
        self.backend = job.backend
        self.toolkit = True
        self._record = self.backend.record
        self._runner = Runner(job.loop, os.environ, protected=job.protected)
        self._runtime = folders.make()
        self._remover: Remover | None = None
        self._engine = Engine()
        self._image: ImageFacts | None = None
        self._network = False  # whether the network exists
        self._ssh_files: bytes | None = None
        self._gateway = ""
        self._relays = Relays(self.backend)
        self._aws: Mapping[str, str] = {}
        self._pool: kept.ContainerPool | None = None
        self._used: set[str] = set()  # hosts whose containers run, or had a process killed
        self._made: asyncio.Task[None] | None = None
        self._made_for = 0  # the attempt that `_made` prepares
        self._giving_back = asyncio.Lock()

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: JobOptions) -> list[str]:
        """Return the reasons why the job cannot run in containers. The list is empty if the job can run.

        Raises:
            EngineError: the engine cannot be reached, or the image does not exist.
        """
        return checking.check(spec, options)

    @classmethod
    def placement(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """Return where the hosts would run, with the ``docker`` commands that would start their containers."""
        limits = ContainerOptions.of(options.backend_options)
        gpus = gpu_count() if fleets.capabilities(spec.instance_type).needs_gpus else 0
        toolkit = containers.runs_toolkit(spec, (TOOLKIT_LABEL,))
        plans = [
            containers.plan_container(
                spec,
                options,
                host,
                record=record,
                checkpoints=local.checkpoint_dir(spec) or record / "checkpoints",
                environment={
                    **containers.environment_of(spec, options, host),
                    **toolkit_environment(spec, options, 0),
                },
                inputs=containers.planned_inputs(spec),
                toolkit=toolkit,
                gpus=gpus,
            )
            for host in spec.hosts
        ]
        isolated = ("--internal",) if spec.network_isolation else ()
        return ClusterPlacement(
            machine=Machine(
                python="python",
                cpus=cpu_count() if limits.cpus is None else max(1, round(limits.cpus)),
                gpus=gpus,
                mpirun="mpirun",
                hosts_here=len(spec.hosts) if limits.cpus is None else 1,
                container_package="container",
            ),
            facts=containers.facts(options),
            entry_points={plan.host: plan.command_line() for plan in plans},
            preparations=(("docker", "network", "create", *isolated, containers.network_of(spec)),),
        )

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return the containers and networks in the container engine that no job uses any more."""
        from estimators.backends.docker import leftovers

        return leftovers.find()

    async def _call(self, work: Callable[[], T]) -> T:
        """Make a blocking call to the container engine, and return the call's result."""
        return await call(self.loop, work)

    # --- network and pools ---

    async def acquire(self, name: str) -> Host:
        """Return a host at once, while the network or the pool for the host's container is being prepared.

        In an elastic job, first wait for the network, because the job's driver listens at this machine's address in the
        network.

        Raises:
            PreparationFailed: the network of an elastic job cannot be created.
        """
        host, made = ContainerHost(self._runner, self, name), self._have_made()
        if launchers.of(self.backend.spec.strategy).membership_changes:
            try:
                await asyncio.shield(made)
            except (FleetfitError, OSError) as error:
                raise PreparationFailed(problem(str(error), Cause.LAUNCH)) from None
            host.caller_address = self._gateway
        return host

    def shared_platform(self) -> MountedPlatform:
        """Create the object that prepares and saves the files of all hosts."""
        return MountedPlatform(self.backend, self)

    def _have_made(self) -> asyncio.Task[None]:
        """Return the task that prepares the network or the pool. The first call starts the task.

        In a new attempt, start another task if the last one has failed, or if a process in a container was killed.
        """
        made, attempt = self._made, self.backend.attempt
        if made is None or (attempt != self._made_for and made.done() and (made.exception() or self._used)):
            self._made_for = attempt
            made = self._made = asyncio.ensure_future(self._make())
        return made

    async def _make(self) -> None:
        """Create the job's network. If the job uses kept containers, find or create a pool instead."""
        spec, engine = self.backend.spec, self._engine
        if not spec.resources.keep_alive_s and self._remover is None:
            self._have_removed(containers.RECORD_LABEL, self._record.path)
        image = self._image = await self._call(lambda: engine.image(containers.image_of(spec)))
        self.toolkit = containers.runs_toolkit(spec, image.labels)
        settings = containers.aws_settings(os.environ)
        self._aws = settings if spec.network_isolation else await self._relays.open(engine, settings)
        if spec.resources.keep_alive_s:
            await self._find_pool(image)
        elif not self._network:
            if job_secrets.wants_sshd(spec, self.job.options, toolkit=self.toolkit):
                now, hosts = time.time(), spec.hosts
                self._ssh_files = await self._call(lambda: job_secrets.ssh_files(hosts, image.environment, now=now))
            await self._call(self._make_network)

    def _make_network(self) -> None:
        spec, name = self.backend.spec, containers.network_of(self.backend.spec)
        labels = containers.labels_of(spec, self._record.path)
        self._engine.create_network(name, labels, internal=bool(spec.network_isolation))
        self._network = True
        if launchers.of(spec.strategy).membership_changes:
            self._gateway = self._engine.gateway(name)

    async def _find_pool(self, image: ImageFacts) -> None:
        """Take a kept pool that fits the job, or create a pool. A pool in which a process was killed is not used again.

        Raises:
            EngineError: the pool cannot be created.
            OSError: a folder cannot be created.
        """
        spec, home, checkpoints = self.backend.spec, self._record.home, local.checkpoint_dir(self.backend.spec)
        self._let_go()
        for folder in (checkpoints, containers.local_output(spec)):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        jobs, isolated = self._record.path.parent, bool(spec.network_isolation)
        plans = kept.plan_pool(spec, self.job.options, jobs=jobs, checkpoints=checkpoints, gpus=gpu_count())
        key = kept.key_of(plans, image.id, isolated=isolated)
        found = await self._call(lambda: kept.find(home, key, spec.hosts))
        pool = self._pool = found or kept.new(home, key)
        self._have_removed(kept.POOL_LABEL, pool.path)
        if found is None:
            await self._call(lambda: pool.make(plans, self._engine, self._record.path, isolated=isolated))

    def _let_go(self) -> None:
        """Make the remover, a separate process, remove the containers and the network. The remover removes a kept pool
        only when the pool's keep time has ended.

        A later call of :meth:`_make` then finds or creates a pool again.
        """
        if self._pool is not None:
            self._pool.close()
        if self._remover is not None:
            self._remover.finish()
        self._pool = self._remover = None
        self._used.clear()

    def _have_removed(self, label: str, value: Path) -> None:
        """Start the remover, a separate process that later removes all containers and networks with a label.

        The remover does so when the supervisor requests it or has ended. It also makes the user the owner of the job's
        files.

        Args:
            label: The name of the label.
            value: The value of the label.
        """
        duty = dataclasses.asdict(self._duty(label, value))
        self._remover = Remover(self.loop, self.job.protected, reaper.__name__, str(value), duty)

    def _duty(self, label: str, value: Path) -> Duty:
        record, spec = self._record, self.backend.spec
        own_checkpoints = local.checkpoint_dir(spec) if local.synced_checkpoints(spec) is None else None
        theirs = (own_checkpoints, containers.local_model_dir(spec))
        return Duty(
            label=label,
            value=str(value),
            runtime=str(self._runtime),
            image=containers.image_of(spec),
            trees=(str(record.path / "hosts"), str(record.checkpoints_dir)),  # hosts that are added later are included
            shared=tuple(str(place) for place in theirs if place is not None),
        )

    # --- the containers ---

    async def start(self, host: str, env: Mapping[str, str]) -> RunningContainer:
        """Start a host's container, or start the host's toolkit in a kept container.

        Args:
            host: The name of the host.
            env: The environment variables of the host's toolkit. The job's token is written to a file instead.

        Raises:
            FleetfitError: the container cannot be started.
            OSError: the host's files cannot be written.
        """
        await asyncio.shield(self._have_made())
        spec, record, pool = self.backend.spec, self._record, self._pool
        environment = dict(env)
        token = environment.pop(variables.JOB_TOKEN)
        secrets = pool.secrets(host) if pool is not None else self._runtime / host
        environment = {**self._aws, **environment, **job_secrets.write(secrets, token)}
        if (model_dir := containers.local_model_dir(spec)) is not None:
            model_dir.mkdir(parents=True, exist_ok=True)
        self._used.add(host)
        if pool is not None:
            environment |= {variables.TREE: str(record.tree(host).base), variables.LIFELINE_FD: "0"}
            return await self._until_started(self._start_kept(pool, host, environment))
        plan = containers.plan_container(
            spec,
            self.job.options,
            host,
            record=record.path,
            checkpoints=trees.checkpoints(record, spec),
            environment=environment,
            secrets=secrets,
            inputs=containers.channel_mounts(record.tree(host).data, local.linked(spec)),
            attempt=self.backend.attempt,
            toolkit=self.toolkit,
            gpus=gpu_count(),
        )
        made = await self._call(lambda: self._engine.create(plan))
        if (ssh_files := self._ssh_files) is not None:
            await self._call(lambda: self._engine.put(made, ssh_files))
        stream = await self._call(lambda: self._engine.attach(made, plan))
        return await self._until_started(self._start(made, stream, plan))

    async def _start_kept(
        self, pool: kept.ContainerPool, host: str, environment: Mapping[str, str]
    ) -> RunningContainer:
        """Start the toolkit in a kept container."""
        return RunningContainer(pool.container(host), *pool.start(host, environment))

    async def _start(self, made: str, stream: socket.socket, plan: containers.ContainerPlan) -> RunningContainer:
        """Start a container that was created, and make its name resolvable in the other containers."""
        engine, spec = self._engine, self.backend.spec
        try:
            await self._call(lambda: engine.start(made, plan))
            if containers.keeps_names(spec, toolkit=self.toolkit):
                with contextlib.suppress(EngineError, OSError):  # the engine resolves the name while the container runs
                    if address := await self._call(lambda: engine.address_in(plan.network, made)):
                        naming.add([self._runtime / host for host in spec.hosts], plan.host, address)
        except BaseException:
            stream.close()
            raise
        return RunningContainer(made, stream)

    async def _until_started(self, start: Coroutine[Any, Any, RunningContainer]) -> RunningContainer:
        """Wait until a container has started. If the caller is cancelled meanwhile, kill the container after its start,
        because the engine cannot cancel the start.
        """
        starting = asyncio.ensure_future(start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.shield(self.loop.start(self._kill_started(starting)))
            raise

    async def _kill_started(self, starting: Awaitable[RunningContainer]) -> None:
        with contextlib.suppress(FleetfitError, OSError):  # a container that did not start needs no end
            running = await starting
            running.close()
            await self._kill(running.container, "SIGKILL")

    def write_names(self, host: str) -> None:
        """Write the file that becomes a host's ``/etc/hosts``.

        Raises:
            OSError: the file cannot be written.
        """
        naming.write(self._runtime / host)

    async def wait(self, running: RunningContainer) -> ContainerEnd:
        """Wait until a container has ended, and return how it has ended. In a kept container, wait for the toolkit
        instead.
        """

        def wait() -> ContainerEnd:
            code = kept.exit_code(running.answer) if running.answer is not None else None
            if code == 0:
                return ContainerEnd(exit_code=0)
            return self._engine.wait(running.container) if code is None else self._engine.ended(running.container, code)

        return await self._call(wait)

    def succeeded(self, host: str) -> bool:
        """Return whether our toolkit on a host has reported success. This is the toolkit's last action before its exit.

        Return False while the backend ends the attempt.
        """
        file, backend = self._record.tree(host).success_file, self.backend
        with contextlib.suppress(OSError, UnicodeDecodeError):
            said = file.read_text(encoding="utf-8") == success_text(backend.attempt)
            return said and self.toolkit and not backend.is_ending
        return False

    def said(self, host: str) -> str:
        """Return the content of a host's ``/opt/ml/output/failure``. Return "" if the file does not exist.

        By SageMaker's contract, the script or toolkit writes the reason of its failure into this file.
        """
        try:
            return self._record.tree(host).failure_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def kill(self, running: RunningContainer, name: str) -> None:
        """Send a signal to a container.

        Args:
            running: The container.
            name: The name of the signal, such as ``SIGTERM``.
        """
        self.loop.start(self._kill(running.container, name))

    async def _kill(self, container: str, name: str) -> None:
        with contextlib.suppress(EngineError):  # the container's end is waited for in any case
            await self._call(lambda: self._engine.kill(container, name))

    def ended(self, host: str, *, clean: bool) -> None:
        """Record that a host's container, or the host's toolkit in a kept container, has ended.

        Args:
            host: The name of the host.
            clean: Whether no process in the container was killed.
        """
        if clean:
            self._used.discard(host)

    # --- the end ---

    async def give_back(self) -> None:
        """Make the calling user the owner of the files that the containers have written."""
        if self._image is None:
            return
        duty, user = self._duty(containers.RECORD_LABEL, self._record.path), self._image.user
        async with self._giving_back:
            try:
                await self._call(lambda: ownership.give_back(self._engine, duty, user))
            except (FleetfitError, OSError) as error:  # the error does not fail the job, because the job's files exist
                said = f"the owner of the containers' files could not be changed: {error}\n"
                self.backend.hand_on(self.backend.spec.hosts[0], said.encode())

    def close(self) -> None:
        """Make the remover, a separate process, remove the containers and the network.

        If they belong to a pool, and no process in the containers was killed, keep the pool for the next job instead.
        """
        if self._made is not None:
            self._made.cancel()
        self._relays.close()
        if self._pool is not None and not self._used:
            self._pool.keep(self.backend.spec.resources.keep_alive_s or 0)
        remove_tree(self._runtime, ignore_errors=True)  # tells the remover that the supervisor was not killed
        self._let_go()


class GpuDockerProvider(DockerProvider):
    """A provider of one container with this machine's GPUs for each host."""

    name = fleets.GPU_CONTAINERS
    capabilities = fleets.FLEETS[fleets.GPU_CONTAINERS].capabilities

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return nothing, because :class:`DockerProvider` finds all containers."""
        return ()
