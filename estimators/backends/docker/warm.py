"""Containers that are kept for the next job: ``keep_alive_period_in_seconds``.

A pool is a network and one idle container for each host, in which jobs run one after another. It serves a job that
wants the same image, hosts, limits and folders; which folders it sees is settled when it is made. A pool is a folder
under ``$FLEETFIT_HOME/warm`` and a process, its reaper, which has the clock: between jobs it listens in the folder, and
the supervisor that connects has the pool. It removes the pool when its time is over, and when a job is killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.backends.docker import containers, keeping, kept
from estimators.backends.docker import options as places
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Engine, Running
from estimators.backends.docker.options import SECRETS, ContainerOptions, Mount
from estimators.job.request import RunOptions, TrainingJobSpec

#: Label of a pool's things: its folder.
POOL_LABEL = "fleetfit.pool"
_PROGRAM = ("/opt/fleetfit/bin/python", "-I", "/opt/fleetfit/toolkit/container/__main__.py")
#: What runs in a pool's containers, and starts the jobs' toolkits.
IDLE = (*_PROGRAM, "idle", kept.socket_in(places.IDLE))
_STATE = "state.json"


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool that a job has.

    Attributes:
        path: Its folder.
        key: What it serves.
        containers: Host -> the container's id.
        reaper: The connection to its reaper; None for a new one.
    """

    path: Path
    key: str
    containers: dict[str, str] = dataclasses.field(default_factory=dict)
    reaper: socket.socket | None = None

    def secrets(self, host: str) -> Path:
        """Return the folder that a host's container has as :data:`SECRETS`."""
        return self.path / "secrets" / host

    def sockets(self, host: str) -> Path:
        """Return the folder that a host's container has as :data:`.options.IDLE`."""
        return self.path / "sockets" / host

    def starter(self, host: str, environment: Mapping[str, str], engine: Engine) -> Callable[[], Running]:
        """Return what starts a host's toolkit, in a thread."""
        container = self.containers[host]

        def start() -> Running:
            stream, control = kept.start(self.sockets(host), environment, lambda: engine.is_running(container))
            return Running(container, stream, bytes, lambda: engine.ended_in(container, kept.exit_code(control)))

        return start

    def keep(self) -> bool:
        """Remove all secrets of the job, and have the pool for the next one; return whether that could be done."""
        try:
            for file in self.path.glob("secrets/*/*"):
                file.unlink()
            keeping.offer(self.path)
        except OSError:
            return False
        return True


def labels_of(path: Path) -> dict[str, str]:
    """Return what marks everything of a pool on the engine."""
    return {containers.JOB_LABEL: "warm", POOL_LABEL: str(path)}


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
    shared = [jobs, *(path for path in (checkpoints, containers.local_output(spec)) if path is not None)]
    mounts = [Mount(source=str(path), target=str(path)) for path in shared]
    for mount in containers.planned_inputs(spec):
        path = str(Path(mount.source).resolve())  # what the agent's links lead to
        mounts.append(Mount(source=path, target=path, read_only=True))
    return tuple(
        ContainerPlan(
            host=host,
            name="",
            image=containers.image_of(spec),
            entrypoint=IDLE[:1],
            command=IDLE[1:],
            mounts=(*dict.fromkeys(mounts), *limits.mounts),
            limits=limits,
            gpus=containers.gpus_of(spec, host, gpus),
        )
        for host in spec.hosts
    )


def key_of(plans: Sequence[ContainerPlan], image: str, *, isolated: bool) -> str:
    """Return what tells pools apart: everything of the containers, and the image's id."""
    described = [dataclasses.asdict(plan) for plan in plans]
    text = json.dumps([described, image, isolated], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def claim(home: Path, key: str) -> Pool | None:
    """Take a pool of this key that nobody uses and whose containers run; None without one."""
    for path in sorted((home / "warm").glob("*")):
        state = read_state(path)
        if state.get("key") != key:
            continue
        if (reaper := keeping.claim(path)) is None:
            continue
        pool = Pool(path, key, dict(state["containers"]), reaper)
        if all(kept.listens(pool.sockets(host)) for host in pool.containers):
            return pool
        reaper.close()  # at which the pool is removed
    return None


def new(home: Path, key: str) -> Pool:
    """Make the folder of a pool.

    Raises:
        OSError: it cannot be made.
    """
    pool = Pool(home / "warm" / uuid.uuid4().hex[:12], key)
    pool.path.mkdir(parents=True, mode=0o700)
    return pool


def make(pool: Pool, plans: Sequence[ContainerPlan], engine: Engine, *, isolated: bool) -> None:
    """Make what is in a pool: the network and the containers, which then run idle.

    Raises:
        EngineError: they cannot be made.
        OSError: a folder cannot be.
    """
    network = f"fleetfit-warm-{pool.path.name}"
    engine.create_network(network, labels_of(pool.path), internal=isolated)
    for plan in plans:
        pool.secrets(plan.host).mkdir(parents=True, mode=0o755)
        pool.sockets(plan.host).mkdir(parents=True, mode=0o700)
        secrets = Mount(source=str(pool.secrets(plan.host)), target=SECRETS, read_only=True)
        sockets = Mount(source=str(pool.sockets(plan.host)), target=places.IDLE)
        named = dataclasses.replace(
            plan,
            name=f"{network}-{plan.host}",
            network=network,
            mounts=(*plan.mounts, secrets, sockets),
            labels={**labels_of(pool.path), containers.HOST_LABEL: plan.host},
        )
        pool.containers[plan.host] = engine.create(named)
        engine.start(pool.containers[plan.host], named)
    (pool.path / _STATE).write_text(json.dumps({"key": pool.key, "containers": pool.containers}), encoding="utf-8")


def read_state(path: Path) -> dict[str, Any]:
    """Return what a pool serves and has; empty for what is none."""
    try:
        return dict(json.loads((path / _STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # it is being made, or removed
        return {}
