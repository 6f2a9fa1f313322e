"""Keep containers for the next job: ``keep_alive_period_in_seconds``.

A pool is a network with one container for each host. The container's first process (:mod:`container.toolkit.idle`)
forks the toolkit of one job after another. A pool serves only jobs with equal images, hosts, limits and folders,
because the mounts are fixed when the containers are created.

Each pool has a folder under ``$FLEETFIT_HOME/warm``, with the sockets of the containers' first processes. A pool
belongs to a job as long as the job's supervisor is connected to all of these sockets. The containers end by themselves
when their keep time is over, or when the supervisor of their job was killed. A remover (:mod:`.reaper`) then removes
the pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.contract.messages import MessageError
from container.system import locks, sockets
from container.system.connection import BlockingConnection, ask
from estimators.backends.docker import containers
from estimators.backends.docker.containers import ContainerPlan
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.options import IDLE, SECRETS, ContainerOptions, Mount
from estimators.backends.images.errors import EngineError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord

#: Label of a pool's containers and network, with the pool's folder as the value.
POOL_LABEL = "fleetfit.pool"
#: File name of the socket of a container's first process.
SOCKET = "toolkit"
_PROGRAM = ("/opt/fleetfit/bin/python", "-I", "/opt/fleetfit/toolkit/container/__main__.py")
#: Arguments of the first process of a pool's containers.
_IDLE = ("idle", f"{IDLE}/{SOCKET}")
#: Seconds within which a container's first process must listen, and seconds between two attempts to connect to it.
_START_S, _LOOK_S = 60.0, 0.005
#: Seconds between two checks whether the containers still run.
_ASK_S = 1.0
#: Seconds for which the engine may answer with errors before a remover stops waiting for a pool's end.
_SILENT_S = 60.0
#: The states of a container whose first process has not ended.
_ALIVE = ("running", "paused")
#: Seconds within which a first process must answer.
_ANSWER_S = 5.0


class ContainerPool:
    """A network with containers that are kept for jobs. The object is one job's access to the pool.

    Args:
        path: The path of the pool's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connections: dict[str, socket.socket] = {}  # host -> the connection of the job that has the pool

    def take(self, hosts: Sequence[str]) -> None:
        """Connect to the first processes of the hosts' containers.

        Raises:
            OSError: a container has ended, or belongs to another job. All connections are then closed again.
        """
        try:
            for host in hosts:
                connection = self._connections[host] = sockets.connect(self.socket_path(host))
                connection.settimeout(_ANSWER_S)
                greeting = connection.recv(1 << 10)
                if b'"busy"' in greeting:
                    raise ConnectionRefusedError("another job has the container")
                if b'"yours"' not in greeting:
                    raise ConnectionAbortedError("its first process does not answer")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections to the containers. The pool then no longer belongs to the job.

        If a toolkit was started in a container, the container then ends, unless :meth:`keep` was called.
        """
        while self._connections:
            self._connections.popitem()[1].close()

    @property
    def in_use(self) -> bool:
        """Return whether the job that has created the pool is running, or a container of the pool answers.

        Raises:
            PermissionError: the pool belongs to another user.
        """
        with contextlib.suppress(FileNotFoundError):
            if JobRecord(Path((self.path / "job").read_text(encoding="utf-8"))).is_supervised():
                return True
        for place in self.path.glob(f"sockets/*/{SOCKET}"):
            with contextlib.suppress(OSError):
                with sockets.connect(place) as connection:
                    connection.settimeout(_ANSWER_S)
                    if b'"op"' in connection.recv(1 << 10):
                        return True
        return False

    def await_end(self, engine: Engine, *, killed: bool) -> bool:
        """Wait until all containers of the pool have ended.

        Args:
            engine: The client of the container engine.
            killed: Whether the supervisor of the caller's job was killed. The containers then end now.

        Returns:
            Whether the caller has to remove the pool. False if the remover of an earlier job already waits for the
            containers, and will remove the pool. If ``killed`` is true, the result is never False: the function then
            waits until that remover has ended.
        """
        labels, answered = {POOL_LABEL: str(self.path)}, time.monotonic()
        with contextlib.suppress(OSError):  # the pool was removed
            while locks.take(self.path / "remover") is None:  # the lock is held until this process ends
                if not killed:
                    return False
                time.sleep(_ASK_S)
        while time.monotonic() - answered <= _SILENT_S:  # if the engine fails for longer, the removal reports the error
            with contextlib.suppress(EngineError):
                if not any(one["State"] in _ALIVE for one in engine.leftovers(labels)[0]):
                    break
                answered = time.monotonic()
            time.sleep(_ASK_S)
        return True

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

    def socket_path(self, host: str) -> Path:
        """Return the path of the socket of the first process in a host's container.

        The socket's folder is mounted in the container as :data:`IDLE`.
        """
        return self.path / "sockets" / host / SOCKET

    def make(self, plans: Sequence[ContainerPlan], engine: Engine, job: Path, *, isolated: bool) -> None:
        """Create the pool's folder and network, start the pool's containers, and connect to them.

        Args:
            plans: The descriptions of the containers.
            engine: The client of the container engine.
            job: The path of the record of the job that creates the pool.
            isolated: Whether the network has no connection to other networks.

        Raises:
            EngineError: the network or a container cannot be created, or a container's first process does not listen.
            OSError: a folder cannot be created.
        """
        self.path.mkdir(parents=True, mode=0o700)
        (self.path / "job").write_text(str(job), encoding="utf-8")
        labels = {containers.JOB_LABEL: "warm", POOL_LABEL: str(self.path)}
        try:
            engine.create_network(self.network, labels, internal=isolated)
            for plan in plans:
                named = self._complete(plan, labels)
                engine.start(engine.create(named), named)
            self._await_start([plan.host for plan in plans], engine)
        except (EngineError, OSError):
            with contextlib.suppress(EngineError, OSError):  # the remover tries again
                engine.remove_all(labels)  # containers with another toolkit would not end by themselves
            raise

    def _complete(self, plan: ContainerPlan, labels: Mapping[str, str]) -> ContainerPlan:
        """Create a host's folders, and return the plan with the container's name, network, labels and these folders."""
        host = plan.host
        self.secrets(host).mkdir(parents=True, mode=0o755)
        self.socket_path(host).parent.mkdir(parents=True, mode=0o700)
        secrets = Mount(source=str(self.secrets(host)), target=SECRETS, read_only=True)
        idle = Mount(source=str(self.socket_path(host).parent), target=IDLE)
        return dataclasses.replace(
            plan,
            name=self.container(host),
            network=self.network,
            mounts=(*plan.mounts, secrets, idle),
            labels={**labels, containers.HOST_LABEL: host},
        )

    def _await_start(self, hosts: Sequence[str], engine: Engine) -> None:
        begun = asked = time.monotonic()
        while True:
            try:
                return self.take(hosts)
            except OSError as error:
                now = time.monotonic()
                if isinstance(error, ConnectionAbortedError | TimeoutError):
                    raise EngineError(
                        "the first process of a kept container does not answer. If the image contains another version "
                        "of fleetfit's toolkit, run `fleetfit image build`."
                    ) from error
                if now - begun > _START_S:
                    raise EngineError(f"the kept containers did not start within {_START_S:g} s: {error}.") from error
                if now - asked > _ASK_S:
                    asked = now
                    if not all(engine.is_running(self.container(host)) for host in hosts):
                        raise EngineError("a kept container ended before a job ran in it.") from error
            time.sleep(_LOOK_S)

    def start(self, host: str, environment: Mapping[str, str]) -> tuple[socket.socket, BlockingConnection]:
        """Start a job's toolkit through the first process of a kept container.

        Args:
            host: The name of the container's host.
            environment: The environment variables of the job.

        Returns:
            The connection to the toolkit's output and standard input, and the connection on which the toolkit's exit
            code is reported.

        Raises:
            EngineError: the first process has ended.
        """
        ours, theirs = socket.socketpair()
        answer, their_answer = socket.socketpair()
        try:
            with theirs, their_answer:
                descriptors = [theirs.fileno(), their_answer.fileno()]
                ask(self._connections[host], {"environment": dict(environment)}, descriptors)
        except OSError as error:
            ours.close()
            answer.close()
            raise EngineError(f"the kept container ended before the job ran in it: {error}.") from error
        return ours, BlockingConnection(answer)

    def keep(self, seconds: float) -> None:
        """Delete the job's secrets. If all secrets were deleted, keep the containers for the next job.

        Args:
            seconds: The keep time in seconds.
        """
        with contextlib.suppress(OSError):
            for file in self.path.glob("secrets/*/*"):
                file.unlink()
            for connection in list(self._connections.values()):  # a thread may be connecting
                connection.sendall(json.dumps({"keep": seconds}).encode())


def plan_pool(
    spec: TrainingJobSpec, options: RunOptions, *, jobs: Path, checkpoints: Path | None, gpus: int
) -> tuple[ContainerPlan, ...]:
    """Plan a pool of kept containers for a job: return a description of one container for each host.

    The pool need not exist. Files and folders are mounted at the paths that they have on this machine. The names of the
    containers are empty; :meth:`ContainerPool.make` adds them.

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
    """Return the key of the pools that fit a job: a digest.

    The digest is computed from the descriptions of the containers, the image's id, and whether the network is isolated.
    """
    described = [dataclasses.asdict(plan) for plan in plans]
    text = json.dumps([described, image, isolated], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(home: Path, key: str, hosts: Sequence[str]) -> ContainerPool | None:
    """Find a kept pool with this key, and connect to it. The pool then belongs to this job.

    Args:
        home: The folder that contains the folder of pools.
        key: The result of :func:`key_of`.
        hosts: The names of the job's hosts.

    Returns:
        The pool. None if there is no pool with this key, or if all of them have ended or belong to other jobs.
    """
    for path in sorted((home / "warm").glob(f"{key}-*")):
        pool = ContainerPool(path)
        with contextlib.suppress(OSError):
            pool.take(hosts)
            return pool
    return None


def new(home: Path, key: str) -> ContainerPool:
    """Return the object of a new pool with this key. The pool exists only after :meth:`ContainerPool.make`."""
    return ContainerPool(home / "warm" / f"{key}-{os.urandom(4).hex()}")


def exit_code(answer: BlockingConnection) -> int | None:
    """Wait for the toolkit's exit code, and return it.

    Return None if the container has ended without reporting the exit code.
    """
    with answer, contextlib.suppress(OSError, MessageError):
        if (message := answer.receive()) is not None:
            return int(message["exit_code"])
    return None
