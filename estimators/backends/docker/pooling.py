"""The kept containers of one job: found or made at its start, left to the next one at its end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from container.contract import variables
from container.system.connection import BlockingConnection
from container.system.host_machine import gpu_count
from estimators.backends import local
from estimators.backends.docker import containers, job_secrets, kept, warm
from estimators.backends.docker.engine import Ended, Engine, ImageFacts
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord


class Pooling:
    """Where a job with ``keep_alive_period_in_seconds`` runs; nothing for the others.

    Args:
        record: The job's record.
        spec: The job.
        options: How it is run.

    Attributes:
        seconds: How long the containers are kept for the next job; 0 for a job that wants none.
        pool: The job's pool, once :meth:`find` has found or made it.
        new_path: Where a pool is made if there is none.
        broken: Whether a container of the pool was killed, or something in it was for lack of memory.
    """

    def __init__(self, record: JobRecord, spec: TrainingJobSpec, options: RunOptions) -> None:
        self._record = record
        self._options = options
        self.seconds = spec.resources.keep_alive_s or 0
        self.pool: warm.Pool | None = None
        self.new_path = warm.new_path(record.home)
        self.broken = False

    def __bool__(self) -> bool:
        return self.seconds > 0

    @property
    def found_path(self) -> Path | None:
        """The folder of a pool that was there before this job."""
        return self.pool.path if self.pool is not None and self.pool.path != self.new_path else None

    def find(self, engine: Engine, image: ImageFacts, spec: TrainingJobSpec) -> None:
        """In a thread: take a pool that is there, or make one.

        Raises:
            EngineError: it cannot be made.
            OSError: its folder cannot be.
            ConfigurationError: the backend's options make no sense.
        """
        home = self._record.home
        for folder in (local.checkpoint_dir(spec), containers.local_output(spec)):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        plans = warm.plan_pool(
            spec,
            self._options,
            jobs=self._record.path.parent,
            checkpoints=local.checkpoint_dir(spec),
            gpus=gpu_count(),
        )
        isolated = bool(spec.network_isolation)
        key = warm.key_of(plans, image.id, isolated=isolated)
        self.pool = warm.claim(home, key) or warm.make(self.new_path, key, plans, engine, isolated=isolated)

    def starters(
        self, engine: Engine, spec: TrainingJobSpec, *, attempt: int, umask: int, aws: Mapping[str, str]
    ) -> dict[str, Callable[[], tuple[str, socket.socket, BlockingConnection]]]:
        """What starts each host's toolkit, in a thread: its container, and the connections of :func:`.kept.start`.

        Raises:
            OSError: the job's files cannot be written.
        """
        assert self.pool is not None
        pool = self.pool
        if (model_dir := containers.local_model_dir(spec)) is not None:
            model_dir.mkdir(parents=True, exist_ok=True)
        job_secrets.write({host: pool.secrets(host) for host in spec.hosts})
        settings = dict(aws) | job_secrets.credential_variables(pool.secrets(spec.hosts[0]))

        def starter(host: str) -> Callable[[], tuple[str, socket.socket, BlockingConnection]]:
            environment = containers.environment_of(
                spec, self._options, host, attempt=attempt, umask=umask, aws=settings
            )
            environment[variables.TREE] = str(self._record.tree(host).base)
            container = pool.containers[host]

            def start() -> tuple[str, socket.socket, BlockingConnection]:
                return container, *kept.start(pool.sockets(host), environment, lambda: engine.is_running(container))

            return start

        return {host: starter(host) for host in spec.hosts}

    def leave(self) -> None:
        """Have the next attempt use another pool: a container of this one was killed. The reaper removes it."""
        self.pool, self.broken = None, False
        self.new_path = warm.new_path(self._record.home)

    def finish(self, *, whole: bool) -> Path | None:
        """Leave the pool to the next job, if this one left it as it was.

        Args:
            whole: Whether every container was started, and its job has ended by itself.

        Returns:
            The pool's folder, if it is kept.
        """
        if not self:
            return None
        if self.pool is None or self.broken or not whole:
            return None
        try:
            self.pool.keep(self.seconds)
        except OSError:
            return None
        return self.pool.path


def end_in(engine: Engine, container: str, control: BlockingConnection) -> Ended:
    """In a thread: wait for the end of the toolkit in a container that is kept, and say how it ended."""
    code = kept.exit_code(control)
    return Ended(exit_code=0) if code == 0 else engine.ended_in(container, code)
