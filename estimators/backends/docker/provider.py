"""Hosts that are containers of an engine on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from container import launchers
from container.contract import variables
from container.contract.environment import Machine
from container.contract.failures import Cause
from container.system import folders
from container.system.background import Background
from container.system.host_machine import cpu_count, gpu_count
from container.system.removing import remove_tree
from container.system.running import Runner
from estimators.backends import local, trees
from estimators.backends.config import toolkit_environment
from estimators.backends.docker import checking, containers, job_secrets, keeping, naming, warm
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Ended, Engine, ImageFacts, Running
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.docker.host import ContainerHost
from estimators.backends.docker.mounted import MountedPlatform
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.docker.reapers import Duty, Reaper
from estimators.backends.docker.relays import Relays
from estimators.backends.docker.streams import Frames
from estimators.backends.hosts.cluster import HostCluster
from estimators.backends.hosts.platform import PreparationFailed, problem
from estimators.backends.hosts.provider import Host, HostProvider, Leftover, ProvidedJob
from estimators.backends.placement import ClusterPlacement
from estimators.job import fleets
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec

T = TypeVar("T")


class DockerProvider(HostProvider):
    """One container for each host, in a network of the job's; or in containers that are kept for the next job.

    Args:
        job: The job.
        cluster: What runs the job on its hosts.

    Attributes:
        toolkit: Whether our toolkit runs in the containers; known once :meth:`ready` has returned.
    """

    name: ClassVar[str] = fleets.CONTAINERS
    capabilities: ClassVar[fleets.Capabilities] = fleets.FLEETS[fleets.CONTAINERS].capabilities

    def __init__(self, job: ProvidedJob, cluster: ContainerCluster) -> None:
        super().__init__(job)
        self.cluster = cluster
        self.toolkit = True
        self._background = Background.of(job.loop)
        self._runner = Runner(job.loop, os.environ, protected=job.protected)
        self._runtime = folders.make()
        self._reaper = Reaper(job.loop, job.protected, cluster.record.supervisor_log)
        self._engine = Engine()
        self._image: ImageFacts | None = ImageFacts(**job.found) if job.found else None
        self._network = False  # whether it is there
        self._ssh_files: bytes | None = None
        self._gateway = ""
        self._relays = Relays(cluster, self._runner)
        self._aws: Mapping[str, str] = {}
        self._pool: warm.Pool | None = None
        self._spoilt = False  # whether a container of the pool is not as it was
        self._made: asyncio.Task[None] | None = None
        self._made_for = 0  # the attempt
        self._making: set[object] = set()  # what threads are making on the engine
        self._running: set[str] = set()  # hosts whose containers run

    # --- before anything starts ---

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse what cannot be: an engine that does not answer, an image that is not there, GPUs without a runtime.

        Raises:
            UnsupportedError: the image or the engine cannot do it.
            EngineError: the engine or the image is not there.
        """
        return checking.check(spec, options)

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return the engine's facts of the job's image."""
        facts = checking.just_seen(containers.image_of(spec))
        return None if facts is None else dataclasses.asdict(facts)

    @classmethod
    def leftovers(cls, region: str = "") -> Sequence[Leftover]:
        """Return containers and networks on the engine."""
        from estimators.backends.docker import leftovers

        return leftovers.find()

    # --- hosts ---

    async def acquire(self, name: str) -> Host:
        """Return a host at once: what its container needs on the engine is made while its files are written.

        Of an elastic job the first waits for that, as the job's driver listens at this machine's address there.
        """
        host = ContainerHost(self._runner, self, name)
        ready = asyncio.ensure_future(self.ready())
        if launchers.of(self.cluster.spec.strategy).membership_changes:
            try:
                await ready
            except (FleetfitError, OSError) as error:
                raise PreparationFailed(problem(str(error), Cause.LAUNCH)) from None
            host.caller_address = self._gateway
        else:
            ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # its container is told so, too
        return host

    async def ready(self) -> None:
        """Wait until there is on the engine what containers start in; another attempt tries again what failed.

        Raises:
            FleetfitError: it cannot be had.
            OSError: a folder cannot be made.
        """
        made, attempt = self._made, self.cluster.attempt
        if made is None or (attempt != self._made_for and made.done() and (made.exception() or self._spoilt)):
            made, self._made_for = asyncio.ensure_future(self._make()), attempt
            self._made = made
        await asyncio.shield(made)

    async def _make(self) -> None:
        """Make the network, or find or make the containers that are kept."""
        if not self.cluster.spec.resources.keep_alive_s and not self._reaper:
            self._reaper.start(self.duty(containers.RECORD_LABEL, str(self.cluster.record.path)))
        if self._image is None:
            self._image = await self.call(lambda: self._engine.image(containers.image_of(self.cluster.spec)))
        self.toolkit = containers.runs_toolkit(self.cluster.spec, self._image.labels)
        settings = containers.aws_settings(os.environ)
        self._aws = settings if self.cluster.spec.network_isolation else await self._relays.open(self._engine, settings)
        if self.cluster.spec.resources.keep_alive_s:
            await self._find_pool(self._image)
        elif not self._network:
            if job_secrets.wants_sshd(self.cluster.spec, self.job.options, toolkit=self.toolkit):
                variables_there = self._image.environment
                self._ssh_files = await self.call(
                    lambda: job_secrets.ssh_files(self.cluster.spec.hosts, variables_there, now=time.time())
                )
            await self.call(self._make_network)

    def _make_network(self) -> None:
        name = containers.network_of(self.cluster.spec)
        labels = containers.labels_of(self.cluster.spec, self.cluster.record.path)
        self._engine.create_network(name, labels, internal=bool(self.cluster.spec.network_isolation))
        self._network = True
        if launchers.of(self.cluster.spec.strategy).membership_changes:
            self._gateway = self._engine.gateway(name)

    async def _find_pool(self, image: ImageFacts) -> None:
        """Take containers that are kept and fit the job, or make some: not those of which one was killed."""
        spec, record = self.cluster.spec, self.cluster.record
        self._reaper.finish("")
        self._pool, self._spoilt = None, False
        for folder in (local.checkpoint_dir(spec), containers.local_output(spec)):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        plans = warm.plan_pool(
            spec, self.job.options, jobs=record.path.parent, checkpoints=local.checkpoint_dir(spec), gpus=gpu_count()
        )
        isolated = bool(spec.network_isolation)
        key = warm.key_of(plans, image.id, isolated=isolated)
        pool = await self.call(lambda: warm.claim(record.home, key))
        if pool is not None and pool.reaper is not None:
            self._reaper.take(pool.reaper, self.duty(warm.POOL_LABEL, str(pool.path)), pool.path / keeping.LOCK)
        else:
            pool = warm.new(record.home, key)
            self._reaper.start(self.duty(warm.POOL_LABEL, str(pool.path)), pool.path / keeping.LOCK)
            await self.call(lambda: warm.make(pool, plans, self._engine, isolated=isolated))
        self._pool = pool

    def duty(self, label: str, value: str) -> Duty:
        """Return what is removed from the engine and given back to the user when the job is over, or was killed."""
        record, spec = self.cluster.record, self.cluster.spec
        own_checkpoints = local.checkpoint_dir(spec) if local.synced_checkpoints(spec) is None else None
        theirs = (own_checkpoints, containers.local_model_dir(spec))
        return Duty(
            label=label,
            value=value,
            remove=(str(self._runtime),),
            image=containers.image_of(spec),
            trees=(str(record.path / "hosts"), str(record.checkpoints_dir)),  # also of hosts that come later
            shared=tuple(str(place) for place in theirs if place is not None),
        )

    # --- their containers ---

    def starter(self, host: str, env: Mapping[str, str], wanted: Callable[[], bool]) -> Callable[[], Running]:
        """Return what starts a host's container in a thread, once :meth:`ready` has returned.

        Args:
            host: The host.
            env: What its toolkit is told; the job's token is kept from the container's variables.
            wanted: Whether the job still wants it.

        Raises:
            FleetfitError: the backend's options make no sense.
            OSError: the host's files cannot be written.
        """
        spec, record = self.cluster.spec, self.cluster.record
        environment = dict(env)
        token = environment.pop(variables.JOB_TOKEN)
        secrets = self._pool.secrets(host) if self._pool is not None else self._runtime / host
        environment = {**self._aws, **environment, **job_secrets.write(secrets, token)}
        if (model_dir := containers.local_model_dir(spec)) is not None:
            model_dir.mkdir(parents=True, exist_ok=True)
        self._running.add(host)
        if self._pool is not None:
            environment |= {variables.TREE: str(record.tree(host).base), variables.LIFELINE_FD: "0"}
            return self._pool.starter(host, environment, self._engine)
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
        return lambda: self._start(plan, wanted)

    def _start(self, plan: ContainerPlan, wanted: Callable[[], bool]) -> Running:
        """Make a container, attach to it, and start it, in a thread."""
        engine = self._engine
        made = engine.create(plan)
        if self._ssh_files is not None:
            engine.put(made, self._ssh_files)
        stream = engine.attach(made, plan)
        try:
            if not wanted():
                raise EngineError("the job has ended in the meantime")
            engine.start(made, plan)
        except BaseException:
            stream.close()
            raise
        if containers.keeps_names(self.cluster.spec, toolkit=self.toolkit):
            with contextlib.suppress(EngineError, OSError):  # while it runs the engine knows its name
                if address := engine.address_in(plan.network, made):
                    naming.add([self._runtime / host for host in self.cluster.spec.hosts], plan.host, address)
        return Running(made, stream, Frames().feed, lambda: engine.wait(made))

    def write_names(self, host: str) -> None:
        """Write the file that tells a host of the others' names.

        Raises:
            OSError: it cannot be written.
        """
        naming.write(self._runtime / host)

    async def wait(self, running: Running) -> Ended:
        """Wait for the end of a container."""
        return await self._background.call(running.wait)

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
            return await self._background.call(do)
        except (FleetfitError, OSError):
            raise
        except Exception as error:
            raise EngineError(f"the resources of the containers could not be made: {error!r}") from error

    def kill(self, running: Running, name: str) -> None:
        """Send a signal to a container."""
        self._spoilt |= name == "SIGKILL"
        self._background.run(lambda: self._engine.kill(running.container, name), lambda none: None, lambda error: None)

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
        from estimators.backends.docker import ownership

        duty, user = self.duty(containers.RECORD_LABEL, str(self.cluster.record.path)), self._image.user
        try:
            await self.call(lambda: ownership.give_back_all(self._engine, duty, user))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job's own files are there
            said = f"the owner of the containers' files could not be changed: {error}\n"
            self.cluster.callbacks.output(self.cluster.spec.hosts[0], said.encode())

    def close(self) -> None:
        """Have the reaper remove the containers and the network, or keep them for the next job."""
        if self._made is not None:
            self._made.cancel()
        self._relays.close()
        quiet = not self._making
        keep = self._pool is not None and quiet and not self._running and not self._spoilt and self._pool.keep()
        self._reaper.finish(f"keep {self.cluster.spec.resources.keep_alive_s}" if keep else "done" if quiet else "")
        remove_tree(self._runtime, ignore_errors=True)


class ContainerCluster(HostCluster):
    """Runs the hosts of a job as containers."""

    name = DockerProvider.name
    elastic = True
    other_users = True
    provider_type = DockerProvider

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
        """Return the containers that hosts would be, as ``docker`` would start them."""
        limits = ContainerOptions.of(options.backend_options)
        gpus = gpu_count() if fleets.capabilities(spec.instance_type).needs_gpus else 0
        toolkit = containers.runs_toolkit(spec, (containers.TOOLKIT_LABEL,))
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
