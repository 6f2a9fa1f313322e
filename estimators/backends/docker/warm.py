"""Containers that are kept for the next job: ``keep_alive_period_in_seconds``.

A pool is a network and one idle container for each host, in which jobs run one after another. It serves a job that
wants the same image, hosts, limits and folders; which folders it sees is settled when it is made. A pool is a folder
under ``$FLEETFIT_HOME/warm`` with a lock, held by the supervisor whose job runs in it, and a state; between jobs the
reaper of the last job keeps it, and removes it when its time is over.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.system import locks
from container.system.removing import remove_tree
from estimators.backends.docker import containers, kept
from estimators.backends.docker import options as places
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.options import SECRETS, ContainerOptions, Mount
from estimators.job.request import RunOptions, TrainingJobSpec

if TYPE_CHECKING:
    from estimators.backends.docker.engine import Engine

#: Label of a pool's things: its folder.
POOL_LABEL = "fleetfit.pool"
_PROGRAM = ("/opt/fleetfit/bin/python", "-I", "/opt/fleetfit/toolkit/container/__main__.py")
#: What runs in a pool's containers, and starts the jobs' toolkits.
IDLE = (*_PROGRAM, "idle", kept.socket_in(places.IDLE))
_STATE = "state.json"
_LOCK = "lock"
_SECRETS = "secrets"
_SOCKETS = "sockets"
#: A pool that ends within so many seconds is left alone.
_TOO_LATE = 2.0


@dataclasses.dataclass(kw_only=True)
class Pool:
    """A pool whose lock this process holds.

    Attributes:
        path: Its folder.
        key: What it serves.
        containers: Host -> the container's id.
        lock: The lock's descriptor.
    """

    path: Path
    key: str
    containers: dict[str, str]
    lock: int

    def secrets(self, host: str) -> Path:
        """The folder that a host's container has as :data:`SECRETS`."""
        return self.path / _SECRETS / host

    def sockets(self, host: str) -> Path:
        """The folder that a host's container has as :data:`.options.IDLE`."""
        return self.path / _SOCKETS / host

    def save(self, expires: float | None) -> None:
        """Write the state; ``expires`` is when it ends, None while a job runs in it."""
        state = {"key": self.key, "containers": self.containers, "expires": expires}
        staged = self.path / f".{_STATE}"
        staged.write_text(json.dumps(state), encoding="utf-8")
        os.replace(staged, self.path / _STATE)

    def keep(self, seconds: float) -> None:
        """Let another job have it within so many seconds; nothing of this job's secrets stays in it."""
        for folder in (self.path / _SECRETS).iterdir():
            for file in folder.iterdir():
                file.unlink()
        self.save(time.time() + seconds)
        self.release()

    def release(self) -> None:
        """Give the lock up."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def new_path(home: Path) -> Path:
    """Where a pool that is not there yet will be."""
    return home / "warm" / uuid.uuid4().hex[:12]


def labels_of(path: Path) -> dict[str, str]:
    """What marks everything of a pool on the engine."""
    return {containers.JOB_LABEL: "warm", POOL_LABEL: str(path)}


def plan_pool(
    spec: TrainingJobSpec, options: RunOptions, *, jobs: Path, checkpoints: Path | None, gpus: int
) -> tuple[ContainerPlan, ...]:
    """The idle containers that a job could run in, without names: they see what it needs at the paths of this machine.

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
            gpus=containers.gpus_of(number, len(spec.hosts), gpus) if spec.instance_type == "local_gpu" else None,
        )
        for number, host in enumerate(spec.hosts)
    )


def key_of(plans: Sequence[ContainerPlan], image: str, *, isolated: bool) -> str:
    """What tells pools apart: everything of the containers, and the image's id."""
    described = [dataclasses.asdict(plan) for plan in plans]
    text = json.dumps([described, image, isolated], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def claim(home: Path, key: str) -> Pool | None:
    """Take a pool of this key that nobody uses and whose containers run; None without one."""
    for path in sorted((home / "warm").glob("*")):
        lock = _try_lock(path)
        if lock is None:
            continue
        state = read_state(path)
        usable = state is not None and state["key"] == key and (state["expires"] or 0) > time.time() + _TOO_LATE
        if state is not None and usable:
            pool = Pool(path=path, key=key, containers=dict(state["containers"]), lock=lock)
            if all(kept.listens(pool.sockets(host)) for host in pool.containers):
                pool.save(None)
                return pool
        os.close(lock)
    return None


def make(path: Path, key: str, plans: Sequence[ContainerPlan], engine: Engine, *, isolated: bool) -> Pool:
    """Make a pool in a new folder: the network and the containers, which then run idle.

    Raises:
        EngineError: they cannot be made.
        OSError: its folder cannot be.
    """
    path.mkdir(parents=True, mode=0o700)
    lock = _try_lock(path)
    assert lock is not None
    pool = Pool(path=path, key=key, containers={}, lock=lock)
    pool.save(None)
    network = f"fleetfit-warm-{path.name}"
    engine.create_network(network, labels_of(path), internal=isolated)
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
            labels={**labels_of(path), containers.HOST_LABEL: plan.host},
        )
        pool.containers[plan.host] = engine.create(named)
        engine.start(pool.containers[plan.host], named)
    pool.save(None)
    return pool


def read_state(path: Path) -> dict[str, Any] | None:
    """A pool's state; None when it has none."""
    try:
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(state) if isinstance(state, Mapping) else None


def is_used(path: Path) -> bool:
    """Whether a job runs in the pool, or may still come: its time is not over."""
    state = read_state(path)
    if state is not None and state.get("expires") is not None and state["expires"] > time.time():
        return True
    lock = _try_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is None and path.is_dir()


def keep(path: Path, engine_of: Any) -> None:
    """The reaper's part: wait until the pool's time is over or a job takes it; remove it in the first case.

    Args:
        path: The pool's folder.
        engine_of: Makes the engine.
    """
    mine = read_state(path)
    if mine is not None and mine["expires"] is None:
        return  # a job has it already, and that job's reaper keeps it from now on
    while mine is not None:
        left = mine["expires"] - time.time()
        if left <= 0:
            break
        time.sleep(min(left, 1.0))
        found = read_state(path)
        if found is not None and found != mine:
            return
        mine = found  # None: somebody removed the folder
    while (lock := _try_lock(path)) is None and path.exists():
        time.sleep(0.2)  # a job may be looking at it, or taking it
        found = read_state(path)
        if found is not None and found != mine:
            return
    try:
        remove(path, engine_of())
    finally:
        if lock is not None:
            os.close(lock)


def remove(path: Path, engine: Engine) -> None:
    """Remove a pool.

    Raises:
        EngineError: the engine cannot.
    """
    while engine.remove_all({POOL_LABEL: str(path)}):
        pass
    remove_tree(path, ignore_errors=True)


def _try_lock(path: Path) -> int | None:
    try:
        return locks.take(path / _LOCK)
    except OSError:
        return None
