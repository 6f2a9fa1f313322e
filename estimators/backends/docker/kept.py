"""Containers that are kept for the next job: ``keep_alive_period_in_seconds``.

A pool is a network and one container for each host, in whose first process (:mod:`container.toolkit.idle`) toolkits of
one job after another are forked. It serves a job that wants the same image, hosts, limits and folders; the folders that
it sees are settled when it is made. A pool is a folder under ``$FLEETFIT_HOME/warm``. A job that has it holds its lock;
a note beside the lock says until when the pool is for the next job, and whose remover waits for that (:mod:`.reaper`).
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
from collections.abc import Mapping, Sequence
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
from estimators.job.request import RunOptions, TrainingJobSpec

#: Label of a pool's things: its folder.
POOL_LABEL = "fleetfit.pool"
#: The socket of a first process, in its folder.
SOCKET = "toolkit"
_PROGRAM = ("/opt/fleetfit/bin/python", "-I", "/opt/fleetfit/toolkit/container/__main__.py")
#: What runs in a pool's containers.
_IDLE = ("idle", f"{IDLE}/{SOCKET}")
#: Seconds that a container may take until its first process listens, and between two looks.
_START_S, _LOOK_S = 60.0, 0.005
#: Seconds after which the engine is asked whether the container still runs.
_ASK_S = 1.0
#: Seconds between two looks of a remover at its pool's note.
_WATCH_S = 0.5


@dataclasses.dataclass(frozen=True)
class ContainerPool:
    """Hold the containers of a job.

    Attributes:
        path: Its folder.
    """

    path: Path

    # --- whose it is ---

    def take(self) -> int | None:
        """Return the descriptor that holds the pool's lock; None if another process does, or the pool is gone."""
        with contextlib.suppress(OSError):
            return locks.take(self.path / "lock")
        return None

    def note(self, job: str, until: float = 0.0) -> None:
        """Note whose the pool is, and until when it is for the next job, in seconds since the epoch."""
        files.replace(self.path / "note", json.dumps([job, until]).encode())

    def noted(self) -> tuple[str, float]:
        """Return what :meth:`note` has noted last."""
        with contextlib.suppress(OSError, ValueError):
            job, until = json.loads((self.path / "note").read_bytes())
            return job, until
        return "", 0.0

    @property
    def in_use(self) -> bool:
        """Return whether a job has the pool, or may still take it."""
        return locks.is_held(self.path / "lock") or self.noted()[1] > time.time()

    def await_end(self, job: str) -> bool:
        """Wait until the pool's time is over; return whether no other job has taken the pool meanwhile."""
        while self.noted()[0] == job:
            if time.time() >= self.noted()[1] and self.take() is not None:  # held until this process ends
                return self.noted()[0] == job
            time.sleep(_WATCH_S)
        return False

    def answers(self, hosts: Sequence[str]) -> bool:
        """Return whether the first processes of all containers listen."""
        with contextlib.suppress(OSError):
            for host in hosts:
                sockets.connect(self.socket(host)).close()
            return True
        return False

    # --- what it is ---

    @property
    def network(self) -> str:
        """Return the name of its network, with which those of its containers begin."""
        return f"fleetfit-warm-{self.path.name}"

    def container(self, host: str) -> str:
        """Return the name of a host's container."""
        return f"{self.network}-{host}"

    def secrets(self, host: str) -> Path:
        """Return the folder that a host's container has as :data:`SECRETS`."""
        return self.path / "secrets" / host

    def socket(self, host: str) -> Path:
        """Return the socket of a host's first process; the container has its folder as :data:`IDLE`."""
        return self.path / "sockets" / host / SOCKET

    def make(self, plans: Sequence[ContainerPlan], engine: Engine, *, isolated: bool) -> None:
        """Make the network and the containers, which then run idle.

        Raises:
            EngineError: they cannot be made.
            OSError: a folder cannot be.
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
        """Remove the job's secrets, and keep the pool for the next job if that could be done."""
        with contextlib.suppress(OSError):
            for file in self.path.glob("secrets/*/*"):
                file.unlink()
            self.note(job, time.time() + seconds)


def plan_pool(
    spec: TrainingJobSpec, options: RunOptions, *, jobs: Path, checkpoints: Path | None, gpus: int
) -> tuple[ContainerPlan, ...]:
    """Return the idle containers that a job could run in, without names; they see the paths of this machine.

    Args:
        spec: The job.
        options: How it is run.
        jobs: The folder of all jobs' records.
        checkpoints: Where the job's checkpoints go, if not to its record.
        gpus: How many GPUs this machine has.

    Raises:
        ConfigurationError: the backend's options make no sense.
    """
    limits = ContainerOptions.of(options.backend_options)
    shared = [path for path in (jobs, checkpoints, containers.local_output(spec)) if path is not None]
    mounts = [Mount(source=str(path), target=str(path)) for path in shared]
    for mount in containers.planned_inputs(spec):
        path = str(Path(mount.source).resolve())  # what the agent's links lead to
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
    """Return what tells pools apart: a digest of everything of the containers, and of the image's id."""
    described = [dataclasses.asdict(plan) for plan in plans]
    text = json.dumps([described, image, isolated], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def claim(home: Path, key: str, hosts: Sequence[str], job: str) -> tuple[ContainerPool, int] | None:
    """Take a pool of this key that no job has and whose containers run; return it with the descriptor of its lock.

    The time of a pool of which a container has ended is over: each job would try it first.
    """
    for path in sorted((home / "warm").glob(f"{key}-*")):
        pool = ContainerPool(path)
        if (lock := pool.take()) is None:
            continue
        last, until = pool.noted()
        with contextlib.suppress(OSError):  # its folder is being removed
            if until > time.time() and pool.answers(hosts):
                pool.note(job)
                return pool, lock
            pool.note(last)
        os.close(lock)
    return None


def new(home: Path, key: str, job: str) -> tuple[ContainerPool, int]:
    """Make the folder of a pool, and return it with the descriptor of its lock.

    Raises:
        OSError: it cannot be made.
    """
    name = f"{key}-{uuid.uuid4().hex[:8]}"
    staged, pool = ContainerPool(home / "warm" / f".{name}"), ContainerPool(home / "warm" / name)
    staged.path.mkdir(parents=True, mode=0o700)
    staged.note(job)
    lock = staged.take()
    assert lock is not None  # nobody else knows the name yet
    staged.path.rename(pool.path)
    return pool, lock


def start(
    pool: ContainerPool, host: str, environment: Mapping[str, str], engine: Engine
) -> tuple[socket.socket, BlockingConnection]:
    """Start a toolkit by the first process of a container.

    Args:
        pool: The container's.
        host: The container's.
        environment: The job's variables.
        engine: Knows whether the container runs.

    Returns:
        The connection on which the toolkit prints and reads, and the one on which its end is told.

    Raises:
        EngineError: nobody listens there.
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
    """Wait for the toolkit's exit code; None when the container ended with it."""
    with control, contextlib.suppress(OSError, MessageError):
        if (message := control.receive()) is not None:
            return int(message["exit_code"])
    return None
