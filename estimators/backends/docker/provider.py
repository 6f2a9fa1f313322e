"""Hosts that are containers of an engine on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from container import launchers
from container.contract import variables
from container.contract.environment import Machine
from container.contract.failures import Cause
from container.contract.layout import success_text
from container.system import folders
from container.system.background import Background
from container.system.host_machine import cpu_count, gpu_count
from container.system.removing import remove_tree
from container.system.running import Runner
from estimators.backends import local, trees
from estimators.backends.config import toolkit_environment
from estimators.backends.docker import checking, containers, job_secrets, kept, naming, ownership
from estimators.backends.docker.engine import Ended, Engine
from estimators.backends.docker.host import ContainerHost, Running
from estimators.backends.docker.mounted import MountedPlatform
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.docker.reapers import Duty, Reaper
from estimators.backends.docker.relays import Relays
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.hosts.platform import PreparationFailed, problem
from estimators.backends.hosts.provider import Host, HostProvider, Leftover, ProvidedJob
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import TOOLKIT_LABEL
from estimators.backends.placement import ClusterPlacement
from estimators.job import fleets
from estimators.job.errors import FleetfitError
from estimators.job.request import JobOptions, TrainingJobSpec

T = TypeVar("T")


class DockerProvider(HostProvider):
    """One container for each host, in a network of the job's; or in containers that are kept for the next job.

    Args:
        job: The job.
        cluster: What runs the job on its hosts.

    Attributes:
        toolkit: Whether our toolkit runs in the containers; known when the first of them starts.
    """

    name: ClassVar[str] = fleets.CONTAINERS
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.CONTAINERS].capabilities

    def __init__(self, job: ProvidedJob, cluster: ContainerCluster) -> None:
        super().__init__(job)
        self.cluster = cluster
        self.toolkit = True
        self._record = cluster.record
        self._runner = Runner(job.loop, os.environ, protected=job.protected)
        self._runtime = folders.make()
        self._reaper = Reaper(job.loop, job.protected, cluster.record.supervisor_log)
        self._engine = Engine()
        self._image: ImageFacts | None = None
        self._network = False  # whether it is there
        self._ssh_files: bytes | None = None
        self._gateway = ""
        self._relays = Relays(cluster, self._runner)
        self._aws: Mapping[str, str] = {}
        self._pool: kept.Pool | None = None
        self._spoilt = False  # whether a container of the pool is not as it was
        self._made: asyncio.Task[None] | None = None
        self._made_for = 0  # the attempt
        self._making: set[object] = set()  # what threads are making on the engine
        self._running: set[str] = set()  # hosts whose containers run
        self._giving_back = asyncio.Lock()

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: JobOptions) -> list[str]:
        """Refuse what cannot be: an engine that does not answer, an image that is not there, GPUs without a runtime.

        Raises:
            EngineError: the engine or the image is not there.
        """
        return checking.check(spec, options)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return containers and networks on the engine."""
        from estimators.backends.docker import leftovers

        return leftovers.find()

    # --- what containers start in ---

    async def acquire(self, name: str) -> Host:
        """Return a host at once: what its container needs on the engine is made while its files are written.

        Of an elastic job the first waits for that, as the job's driver listens at this machine's address there.
        """
        host, made = ContainerHost(self._runner, self, name), self._have_made()
        if launchers.of(self.cluster.spec.strategy).membership_changes:
            try:
                await asyncio.shield(made)
            except (FleetfitError, OSError) as error:
                raise PreparationFailed(problem(str(error), Cause.LAUNCH)) from None
            host.caller_address = self._gateway
        return host

    def _have_made(self) -> asyncio.Task[None]:
        """Return what makes the network or the pool; another attempt tries again what failed, or was spoilt."""
        made, attempt = self._made, self.cluster.attempt
        if made is None or (attempt != self._made_for and made.done() and (made.exception() or self._spoilt)):
            self._made_for = attempt
            made = self._made = asyncio.ensure_future(self._make())
        return made

    async def _make(self) -> None:
        """Make the network, or find or make the containers that are kept."""
        spec, engine = self.cluster.spec, self._engine
        if not spec.resources.keep_alive_s and not self._reaper:
            self._reaper.start(self._runtime, self._duty(containers.RECORD_LABEL, self._record.path))
        image = self._image = await self.call(lambda: engine.image(containers.image_of(spec)))
        self.toolkit = containers.runs_toolkit(spec, image.labels)
        settings = containers.aws_settings(os.environ)
        self._aws = settings if spec.network_isolation else await self._relays.open(engine, settings)
        if spec.resources.keep_alive_s:
            await self._find_pool(image)
        elif not self._network:
            if job_secrets.wants_sshd(spec, self.job.options, toolkit=self.toolkit):
                now = time.time()
                self._ssh_files = await self.call(lambda: job_secrets.ssh_files(spec.hosts, image.environment, now=now))
            await self.call(self._make_network)

    def _make_network(self) -> None:
        spec, name = self.cluster.spec, containers.network_of(self.cluster.spec)
        labels = containers.labels_of(spec, self._record.path)
        self._engine.create_network(name, labels, internal=bool(spec.network_isolation))
        self._network = True
        if launchers.of(spec.strategy).membership_changes:
            self._gateway = self._engine.gateway(name)

    async def _find_pool(self, image: ImageFacts) -> None:
        """Take containers that are kept and fit the job, or make some: not those of which one was killed."""
        spec, home, checkpoints = self.cluster.spec, self._record.home, local.checkpoint_dir(self.cluster.spec)
        self._reaper.finish("")
        self._pool, self._spoilt = None, False
        for folder in (checkpoints, containers.local_output(spec)):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        jobs = self._record.path.parent
        plans = kept.plan_pool(spec, self.job.options, jobs=jobs, checkpoints=checkpoints, gpus=gpu_count())
        isolated = bool(spec.network_isolation)
        key = kept.key_of(plans, image.id, isolated=isolated)
        if (found := await self.call(lambda: kept.claim(home, key, spec.hosts))) is not None:
            pool, reaper = found
            self._reaper.take(reaper, pool.path, self._duty(kept.POOL_LABEL, pool.path))
        else:
            pool = kept.new(home, key)
            self._reaper.start(pool.path, self._duty(kept.POOL_LABEL, pool.path))
            await self.call(lambda: pool.make(plans, self._engine, isolated=isolated))
        self._pool = pool

    def _duty(self, label: str, value: Path) -> Duty:
        """Return what is removed from the engine and given back to the user when the job is over, or was killed."""
        record, spec = self._record, self.cluster.spec
        own_checkpoints = local.checkpoint_dir(spec) if local.synced_checkpoints(spec) is None else None
        theirs = (own_checkpoints, containers.local_model_dir(spec))
        return Duty(
            label=label,
            value=str(value),
            remove=(str(self._runtime),),
            remove_last=(str(value),) if label == kept.POOL_LABEL else (),
            image=containers.image_of(spec),
            trees=(str(record.path / "hosts"), str(record.checkpoints_dir)),  # also of hosts that come later
            shared=tuple(str(place) for place in theirs if place is not None),
        )

    # --- the containers ---

    async def start(self, host: str, env: Mapping[str, str], told_to_end: asyncio.Event) -> Running:
        """Start a host's container, or its toolkit in one that is kept.

        Args:
            host: The host.
            env: What its toolkit is told; the job's token is kept from the container's variables.
            told_to_end: Set when the job does not want it any more.

        Raises:
            FleetfitError: it cannot be started, or is not wanted any more.
            OSError: the host's files cannot be written.
        """
        await self._until_made(told_to_end)
        spec, record, pool = self.cluster.spec, self._record, self._pool
        environment = dict(env)
        token = environment.pop(variables.JOB_TOKEN)
        secrets = pool.secrets(host) if pool is not None else self._runtime / host
        environment = {**self._aws, **environment, **job_secrets.write(secrets, token)}
        if (model_dir := containers.local_model_dir(spec)) is not None:
            model_dir.mkdir(parents=True, exist_ok=True)
        self._running.add(host)
        if pool is not None:
            environment |= {variables.TREE: str(record.tree(host).base), variables.LIFELINE_FD: "0"}
            stream, control = await self.call(lambda: kept.start(pool, host, environment, self._engine))
            return Running(pool.container(host), stream, control)
        plan = containers.plan_container(
            spec,
            self.job.options,
            host,
            record=record.path,
            checkpoints=trees.checkpoints(record, spec),
            environment=environment,
            secrets=secrets,
            inputs=containers.channel_mounts(record.tree(host).data, local.linked(spec)),
            attempt=self.cluster.attempt,
            toolkit=self.toolkit,
            gpus=gpu_count(),
        )
        return await self.call(lambda: self._start(plan, told_to_end))

    async def _until_made(self, told_to_end: asyncio.Event) -> None:
        """Wait until there is what a container starts in, however long the engine takes, or until it is told to end."""
        made, told = self._have_made(), asyncio.ensure_future(told_to_end.wait())
        try:
            await asyncio.wait((made, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        _check_wanted(told_to_end)
        made.result()

    def _start(self, plan: containers.ContainerPlan, told_to_end: asyncio.Event) -> Running:
        """Make a container, attach to it, and start it, in a thread."""
        engine, spec = self._engine, self.cluster.spec
        made = engine.create(plan)
        if self._ssh_files is not None:
            engine.put(made, self._ssh_files)
        stream = engine.attach(made, plan)
        try:
            _check_wanted(told_to_end)
            engine.start(made, plan)
        except BaseException:
            stream.close()
            raise
        if containers.keeps_names(spec, toolkit=self.toolkit):
            with contextlib.suppress(EngineError, OSError):  # while it runs the engine knows its name
                if address := engine.address_in(plan.network, made):
                    naming.add([self._runtime / host for host in spec.hosts], plan.host, address)
        return Running(made, stream)

    def write_names(self, host: str) -> None:
        """Write the file that tells a host of the others' names.

        Raises:
            OSError: it cannot be written.
        """
        naming.write(self._runtime / host)

    async def wait(self, running: Running) -> Ended:
        """Wait for the end of a container, or of its toolkit in one that is kept."""

        def wait() -> Ended:
            code = kept.exit_code(running.control) if running.control is not None else None
            if code == 0:
                return Ended(exit_code=0)
            return self._engine.wait(running.container) if code is None else self._engine.ended(running.container, code)

        return await Background.of(self.loop).call(wait)

    def succeeded(self, host: str) -> bool:
        """Return whether our toolkit has said that all went well: the last that it does before it ends."""
        file, cluster = self._record.tree(host).success_file, self.cluster
        with contextlib.suppress(OSError, UnicodeDecodeError):
            said = file.read_text(encoding="utf-8") == success_text(cluster.attempt)
            return said and self.toolkit and not cluster.is_ending
        return False

    def said(self, host: str) -> str:
        """Return what a program of others left in ``/opt/ml/output/failure``, SageMaker's place for the reason."""
        try:
            return self._record.tree(host).failure_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    async def call(self, work: Callable[[], T]) -> T:
        """Do in a thread what makes something on the engine; :meth:`close` knows whether that may still go on."""
        mark = object()
        self._making.add(mark)

        def do() -> T:
            try:
                return work()
            finally:
                self._making.discard(mark)

        try:
            return await Background.of(self.loop).call(do)
        except (FleetfitError, OSError):
            raise
        except Exception as error:
            raise EngineError(f"the resources of the containers could not be made: {error!r}") from error

    def kill(self, running: Running, name: str) -> None:
        """Send a signal to a container."""
        self._spoilt |= name == "SIGKILL"
        self.loop.start(Background.of(self.loop).call(lambda: self._engine.kill(running.container, name)))

    def ended(self, host: str, *, spoilt: bool) -> None:
        """Note that a host's container has ended, or its toolkit in one that is kept.

        Args:
            host: The host.
            spoilt: Whether something was killed in it.
        """
        self._running.discard(host)
        self._spoilt |= spoilt

    # --- the end ---

    async def give_back(self) -> None:
        """Make what containers wrote, as root or as their image's user, the calling user's."""
        if self._image is None:
            return
        duty, user = self._duty(containers.RECORD_LABEL, self._record.path), self._image.user
        async with self._giving_back:
            try:
                await self.call(lambda: ownership.give_back(self._engine, duty, user))
            except (FleetfitError, OSError) as error:  # the job's own files are there
                said = f"the owner of the containers' files could not be changed: {error}\n"
                self.cluster.callbacks.output(self.cluster.spec.hosts[0], said.encode())

    def close(self) -> None:
        """Have the reaper remove the containers and the network, or keep them for the next job."""
        if self._made is not None:
            self._made.cancel()
        self._relays.close()
        words = "" if self._making else "done"
        if self._pool is not None and words and not self._running and not self._spoilt and self._pool.forget_secrets():
            words = f"keep {self.cluster.spec.resources.keep_alive_s}"
        self._reaper.finish(words)
        remove_tree(self._runtime, ignore_errors=True)


def _check_wanted(told_to_end: asyncio.Event) -> None:
    """Refuse to start a container that was told to end.

    Raises:
        EngineError: it was.
    """
    if told_to_end.is_set():
        raise EngineError("the job ended before the container started.")


class ContainerCluster(HostCluster):
    """Runs the hosts of a job as containers."""

    name = DockerProvider.name
    elastic = True
    other_users = True
    provider_type = DockerProvider

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: JobOptions, record: Path) -> ClusterPlacement:
        """Return the containers that hosts would be, as ``docker`` would start them."""
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

    def provide(self, job: ProvidedJob) -> DockerProvider:
        """Make the provider, whose hosts' files are in the job's record."""
        return DockerProvider(job, self)

    def platform_here(self) -> MountedPlatform:
        """Make what serves the hosts."""
        assert isinstance(self.provider, DockerProvider)
        return MountedPlatform(self, self.provider)


class GpuContainerCluster(ContainerCluster):
    """Runs them as containers with this machine's GPUs."""

    name = fleets.GPU_CONTAINERS
