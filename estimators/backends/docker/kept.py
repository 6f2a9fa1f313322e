"""Containers that are kept for the next job: ``keep_alive_period_in_seconds``.

A pool is a network and one container for each host, in whose first process (:mod:`container.toolkit.idle`) toolkits of
one job after another are forked. It serves a job that wants the same image, hosts, limits and folders; the folders that
it sees are settled when it is made. A pool is a folder under ``$FLEETFIT_HOME/warm`` and a process, its reaper, which
has the clock (:mod:`.reaper`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.contract import variables
from container.contract.messages import MessageError
from container.system import sockets
from container.system.connection import BlockingConnection
from estimators.backends.docker import containers, reapers
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


@dataclasses.dataclass(frozen=True)
class Pool:
    """The containers that a job has.

    Attributes:
        path: Its folder.
    """

    path: Path

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

    def forget_secrets(self) -> bool:
        """Remove the secrets of a job, and return whether that could be done."""
        with contextlib.suppress(OSError):
            for file in self.path.glob("secrets/*/*"):
                file.unlink()
            return True
        return False


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


def claim(home: Path, key: str, hosts: Sequence[str]) -> tuple[Pool, socket.socket] | None:
    """Take a pool of this key that no job has and whose containers run, and the connection to its reaper.

    A pool of which a container has ended is removed: each job would try it first.
    """
    for path in sorted((home / "warm").glob(f"{key}-*")):
        pool = Pool(path)
        if (reaper := reapers.claim(path)) is not None:
            with contextlib.suppress(OSError):
                for host in hosts:
                    sockets.connect(pool.socket(host)).close()
                return pool, reaper
            reapers.dismiss(reaper)
    return None


def new(home: Path, key: str) -> Pool:
    """Make the folder of a pool.

    Raises:
        OSError: it cannot be made.
    """
    pool = Pool(home / "warm" / f"{key}-{uuid.uuid4().hex[:8]}")
    pool.path.mkdir(parents=True, mode=0o700)
    return pool


def start(
    pool: Pool, host: str, environment: Mapping[str, str], engine: Engine
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
