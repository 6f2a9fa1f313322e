"""Keep containers for the next job: ``keep_alive_period_in_seconds``.

A pool is a network with one container for each host. The container's first process (:mod:`container.toolkit.idle`)
forks the toolkit of one job after another. A pool serves only jobs with equal images, hosts, limits and folders,
because the mounts are fixed when the containers are created.

Each pool has a folder under ``$FLEETFIT_HOME/warm``. The job that uses the pool holds the lock in this folder. A note
in the folder contains the time until which the pool is kept for the next job. The note also names the pool's last job.
The remover of this job (:mod:`.reaper`) removes the pool at that time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path

from container.contract import variables
from container.contract.messages import MessageError
from container.system import files, locks, sockets
from container.system.connection import BlockingConnection
from estimators.backends.docker import containers
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.options import IDLE, SECRETS, ContainerOptions, Mount
from estimators.backends.images.errors import EngineError
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec

#: Label of a pool's containers and network, with the pool's folder as the value.
POOL_LABEL = "fleetfit.pool"
#: File name of the socket of a container's first process.
SOCKET = "toolkit"
_PROGRAM = ("/opt/fleetfit/bin/python", "-I", "/opt/fleetfit/toolkit/container/__main__.py")
#: Arguments of the first process of a pool's containers.
_IDLE = ("idle", f"{IDLE}/{SOCKET}")
#: Seconds within which a container's first process must listen, and seconds between two attempts to connect to it.
_START_S, _LOOK_S = 60.0, 0.005
#: Seconds between two checks whether the container still runs.
_ASK_S = 1.0
#: Seconds between two checks of a pool's note by its remover.
_WATCH_S = 0.5


@dataclasses.dataclass(frozen=True)
class ContainerPool:
    """A network with containers that are kept for jobs.

    Attributes:
        path: The path of the pool's folder.
    """

    path: Path

    # --- the lock and the note ---

    def take(self) -> int | None:
        """Take the pool's lock, and return the descriptor that holds the lock.

        Return None if another process holds the lock, or if the pool was removed.
        """
        with contextlib.suppress(OSError):
            return locks.take(self.path / "lock")
        return None

    def note(self, job: str, until: float = 0.0) -> None:
        """Write the pool's note.

        Args:
            job: The path of the record of the job that uses the pool, or has used the pool last.
            until: The time until which the pool is kept for the next job, in seconds since the epoch.
        """
        files.replace(self.path / "note", json.dumps([job, until]).encode())

    def noted(self) -> tuple[str, float]:
        """Return the values that :meth:`note` has stored last. Return ``("", 0.0)`` if no values are stored."""
        with contextlib.suppress(OSError, ValueError):
            job, until = json.loads((self.path / "note").read_bytes())
            return job, until
        return "", 0.0

    @property
    def in_use(self) -> bool:
        """Return whether a job uses the pool, or may still claim it."""
        return locks.is_held(self.path / "lock") or self.noted()[1] > time.time()

    def await_end(self, job: str) -> bool:
        """Wait until the pool's keep time has ended or another job has claimed the pool.

        Args:
            job: The path of the record of the pool's last job.

        Returns:
            True if the keep time has ended. This process then holds the pool's lock. False if another job has claimed
            the pool.
        """
        while self.noted()[0] == job:
            if time.time() >= self.noted()[1] and self.take() is not None:  # the lock is held until this process ends
                return self.noted()[0] == job
            time.sleep(_WATCH_S)
        return False

    def answers(self, hosts: Sequence[str]) -> bool:
        """Return whether the first processes of all containers accept connections."""
        with contextlib.suppress(OSError):
            for host in hosts:
                sockets.connect(self.socket(host)).close()
            return True
        return False

    # --- the properties of the pool ---

    @property
    def network(self) -> str:
        """Return the name of the pool's network, which is also the prefix of the names of the pool's containers."""
        return f"fleetfit-warm-{self.path.name}"

    def container(self, host: str) -> str:
        """Return the name of a host's container."""
        return f"{self.network}-{host}"

    def secrets(self, host: str) -> Path:
        """Return the folder that is mounted in a host's container as :data:`SECRETS`."""
        return self.path / "secrets" / host

    def socket(self, host: str) -> Path:
        """Return the path of the socket of the first process in a host's container.

        The socket's folder is mounted in the container as :data:`IDLE`.
        """
        return self.path / "sockets" / host / SOCKET

    def make(self, plans: Sequence[ContainerPlan], engine: Engine, *, isolated: bool) -> None:
        """Create the pool's network and start the pool's containers. The containers then wait for jobs.

        Args:
            plans: The descriptions of the containers.
            engine: The client of the container engine.
            isolated: Whether the network has no connection to other networks.

        Raises:
            EngineError: the network or a container cannot be created.
            OSError: a folder cannot be created.
        """
        labels = {containers.JOB_LABEL: "warm", POOL_LABEL: str(self.path)}
        engine.create_network(self.network, labels, internal=isolated)
        for plan in plans:
            host = plan.host
            self.secrets(host).mkdir(parents=True, mode=0o755)
            self.socket(host).parent.mkdir(parents=True, mode=0o700)
            secrets = Mount(source=str(self.secrets(host)), target=SECRETS, read_only=True)
            idle = Mount(source=str(self.socket(host).parent), target=IDLE)
            named = dataclasses.replace(
                plan,
                name=self.container(host),
                network=self.network,
                mounts=(*plan.mounts, secrets, idle),
                labels={**labels, containers.HOST_LABEL: host},
            )
            engine.start(engine.create(named), named)

    def keep(self, job: str, seconds: float) -> None:
        """Delete the job's secrets. If all secrets were deleted, keep the pool for the next job.

        Args:
            job: The path of the job's record.
            seconds: The keep time in seconds.
        """
        with contextlib.suppress(OSError):
            for file in self.path.glob("secrets/*/*"):
                file.unlink()
            self.note(job, time.time() + seconds)


def plan_pool(
    spec: TrainingJobSpec, options: RunOptions, *, jobs: Path, checkpoints: Path | None, gpus: int
) -> tuple[ContainerPlan, ...]:
    """Return the descriptions of idle containers that a job can run in.

    Files and folders are mounted at the paths that they have on this machine. The descriptions contain no container
    names. :meth:`ContainerPool.make` adds the names.

    Args:
        spec: The job.
        options: The run options of the job.
        jobs: The folder of all jobs' records.
        checkpoints: The folder of the job's checkpoints, or None if it is in the record.
        gpus: The number of GPUs of this machine.

    Raises:
        ConfigurationError: the backend's options are invalid.
    """
    limits = ContainerOptions.of(options.backend_options)
    shared = [path for path in (jobs, checkpoints, containers.local_output(spec)) if path is not None]
    mounts = [Mount(source=str(path), target=str(path)) for path in shared]
    for mount in containers.planned_inputs(spec):
        path = str(Path(mount.source).resolve())  # the target of the agent's links
        mounts.append(Mount(source=path, target=path, read_only=True))
    return tuple(
        ContainerPlan(
            host=host,
            name="",
            image=containers.image_of(spec),
            entrypoint=_PROGRAM[:1],
            command=(*_PROGRAM[1:], *_IDLE),
            mounts=(*dict.fromkeys(mounts), *limits.mounts),
            limits=limits,
            gpus=containers.gpus_of(spec, host, gpus),
        )
        for host in spec.hosts
    )


def key_of(plans: Sequence[ContainerPlan], image: str, *, isolated: bool) -> str:
    """Return a digest that identifies the pools that fit a job.

    The digest is computed from the descriptions of the containers, the image's id, and whether the network is isolated.
    """
    described = [dataclasses.asdict(plan) for plan in plans]
    text = json.dumps([described, image, isolated], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def claim(home: Path, key: str, hosts: Sequence[str]) -> tuple[ContainerPool, int] | None:
    """Claim a free pool with this key whose containers run.

    The remover of the pool's last job stays responsible for the pool until the caller writes the next job's path into
    the pool's note (:meth:`ContainerPool.note`). The caller must therefore start the next job's remover first.

    If a container of a pool has ended, the pool's keep time is set to 0, so that no job tries the pool again.

    Args:
        home: The folder that contains the folder of pools.
        key: The result of :func:`key_of`.
        hosts: The names of the job's hosts.

    Returns:
        The pool, and the descriptor of the pool's lock. None if no pool was claimed.
    """
    for path in sorted((home / "warm").glob(f"{key}-*")):
        pool = ContainerPool(path)
        if (lock := pool.take()) is None:
            continue
        last, until = pool.noted()
        with contextlib.suppress(OSError):  # the pool's folder is being removed
            if until > time.time() and pool.answers(hosts):
                return pool, lock
            pool.note(last)
        os.close(lock)
    return None


async def release(claiming: Awaitable[tuple[ContainerPool, int] | None]) -> None:
    """Wait for the result of :func:`claim`, and close the pool's lock, so that a different job can claim the pool.

    This function is used if the job was cancelled while a thread claimed the pool.
    """
    with contextlib.suppress(FleetfitError, OSError):
        if (claimed := await claiming) is not None:
            os.close(claimed[1])


def new(home: Path, key: str, job: str) -> tuple[ContainerPool, int]:
    """Create the folder of a pool, and return the pool with the descriptor of its lock.

    Raises:
        OSError: the folder cannot be created.
    """
    name = f"{key}-{uuid.uuid4().hex[:8]}"
    staged, pool = ContainerPool(home / "warm" / f".{name}"), ContainerPool(home / "warm" / name)
    staged.path.mkdir(parents=True, mode=0o700)
    staged.note(job)
    lock = staged.take()
    assert lock is not None  # no other process knows the name yet
    staged.path.rename(pool.path)
    return pool, lock


def start(
    pool: ContainerPool, host: str, environment: Mapping[str, str], engine: Engine
) -> tuple[socket.socket, BlockingConnection]:
    """Start a job's toolkit through the first process of a kept container.

    Args:
        pool: The pool of the container.
        host: The name of the container's host.
        environment: The environment variables of the job.
        engine: The client of the container engine, to check whether the container is running.

    Returns:
        The connection to the toolkit's output and standard input, and the connection on which the toolkit's exit code
        is reported.

    Raises:
        EngineError: the first process does not listen, or does not accept the job.
    """
    begun = time.monotonic()
    asked = begun
    while True:
        try:
            control = BlockingConnection(sockets.connect(pool.socket(host)), limit=variables.VARIABLES_LIMIT)
            break
        except OSError as error:
            now = time.monotonic()
            if now - begun > _START_S:
                raise EngineError(f"the kept container did not start within {_START_S:g} s: {error}.") from error
            if now - asked > _ASK_S:
                asked = now
                if not engine.is_running(pool.container(host)):
                    raise EngineError("the kept container ended before a job ran in it.") from error
        time.sleep(_LOOK_S)
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            control.send({"op": "run", "environment": dict(environment)}, descriptors=[theirs.fileno()])
    except (OSError, MessageError) as error:
        ours.close()
        control.close()
        raise EngineError(f"the kept container does not accept the job: {error}.") from error
    return ours, control


def exit_code(control: BlockingConnection) -> int | None:
    """Wait for the toolkit's exit code, and return it.

    Return None if the container has ended without reporting the exit code.
    """
    with control, contextlib.suppress(OSError, MessageError):
        if (message := control.receive()) is not None:
            return int(message["exit_code"])
    return None
