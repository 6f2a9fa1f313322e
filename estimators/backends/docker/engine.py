"""A Docker-compatible engine, through Docker's own SDK, and what its errors mean to a user.

``DOCKER_HOST`` and Docker's other variables choose the engine, as for the ``docker`` command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.system import interfaces
from estimators.backends.docker import links
from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.docker.engine_errors import EngineError, build_error, explained

#: Seconds that the engine has to answer a request that does not wait for a container.
_TIMEOUT = 120
#: Where the engine listens if DOCKER_HOST says nothing.
_SOCKET = "unix:///var/run/docker.sock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a container ended.

    Attributes:
        exit_code: Its exit status; 128 and the signal's number after a signal.
        out_of_memory: Whether the kernel killed something in it for lack of memory.
        error: What the engine says about it.
    """

    exit_code: int
    out_of_memory: bool = False
    error: str = ""

    @property
    def was_killed(self) -> bool:
        """Whether something in it was killed."""
        return self.out_of_memory or (self.exit_code >= 128 and self.exit_code != 128 + signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What the engine says of an image.

    Attributes:
        id: Its id.
        labels: Its labels.
        user: The user that its programs run as, as a Dockerfile's ``USER``; empty for root.
        environment: Its variables, ``NAME=value``.
    """

    id: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    environment: tuple[str, ...] = ()


class Engine:
    """One connection to the engine. Its methods block; threads may share it.

    Args:
        environment: Instead of this process's.
        at_once: Whether to connect now; else with the first call, whose errors may be those below: the SDK's import
            takes a fifth of a second, which a job in kept containers need not wait for.

    Raises:
        EngineError: there is no SDK, no engine, or no permission.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, at_once: bool = True) -> None:
        self._variables = dict(os.environ if environment is None else environment)
        self.address = self._variables.get("DOCKER_HOST") or _SOCKET
        self._lock = threading.Lock()
        self._connection: Any = None
        if at_once:
            self.connect()

    def connect(self) -> None:
        """Connect, if that has not been done.

        Raises:
            EngineError: there is no SDK, no engine, or no permission.
        """
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()

    @property
    def _api(self) -> Any:
        self.connect()
        return self._connection

    def _connect(self) -> Any:
        try:
            import docker
        except ImportError:
            raise EngineError(
                "containers need Docker's Python SDK: `fleetfit install docker` (or `pip install docker`)."
            ) from None
        settings = docker.utils.kwargs_from_env(environment=self._variables)
        # One connection for each thread that waits for a container, and some more.
        settings |= {"timeout": _TIMEOUT, "max_pool_size": 64}
        with explained("be reached", self.address):
            # The SDK's way to learn the API's version has the engine start programs to ask for theirs; a ping has not.
            asking = docker.APIClient(**settings, version=docker.constants.MINIMUM_DOCKER_API_VERSION)
            with contextlib.closing(asking), asking.get(f"{asking.base_url}/_ping", timeout=_TIMEOUT) as answer:
                version = answer.headers.get("Api-Version")
            return docker.APIClient(**settings, version=version or "auto")

    # --- what there is ---

    def info(self) -> dict[str, Any]:
        """``docker info``."""
        with explained("describe itself", self.address):
            return dict(self._api.info())

    def is_rootless(self) -> bool:
        """Whether the engine runs as an ordinary user, who is root in its containers."""
        info = self.info()  # Docker says it among the security options, Podman by a key of its own
        return bool(info.get("Rootless")) or "name=rootless" in (info.get("SecurityOptions") or ())

    def image(self, name: str) -> ImageFacts:
        """What the engine says of an image.

        Raises:
            EngineError: the engine does not have it.
        """
        with explained(f"use image {name!r}", self.address, image=name):
            found = self._api.inspect_image(name)
        config = found.get("Config") or {}
        return ImageFacts(
            id=str(found["Id"]),
            labels=dict(config.get("Labels") or {}),
            user=str(config.get("User") or ""),
            environment=tuple(config.get("Env") or ()),
        )

    def has_image(self, image: str) -> bool:
        """Whether the engine has an image."""
        import docker

        try:
            self._api.inspect_image(image)
        except docker.errors.ImageNotFound:
            return False
        return True

    # --- making images ---

    def import_image(self, archive: Path, name: str, changes: Sequence[str]) -> str:
        """Make an image of a file system's tar archive.

        Args:
            archive: The archive.
            name: The image's name.
            changes: Lines of a Dockerfile to apply: ``ENV``, ``CMD`` …

        Returns:
            Its id.
        """
        with explained(f"import {name!r}", self.address):
            self._api.import_image_from_file(str(archive), repository=name, tag="latest", changes=list(changes))
            return str(self._api.inspect_image(name)["Id"])

    def build(
        self,
        context: Path,
        name: str,
        arguments: Mapping[str, str],
        *,
        on_detail: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Build an image of a folder with a Dockerfile.

        Returns:
            Its id.

        Raises:
            EngineError: a step failed; the message has its last lines.
        """
        said: list[str] = []
        on_detail("sending the files to the engine")
        with explained(f"build image {name!r}", self.address):
            for item in self._api.build(
                path=str(context), tag=name, buildargs=dict(arguments), rm=True, forcerm=True, decode=True
            ):
                said += [line for line in str(item.get("stream", "")).splitlines() if line.strip()]
                if said and said[-1].startswith("Step "):
                    on_detail(said[-1].strip()[:100])
                if "error" in item:
                    last = " / ".join(line.strip() for line in said[-4:])
                    raise EngineError(
                        build_error(name, str(item["error"]).strip(), last, arguments.get("BASE_IMAGE", ""))
                    )
            return str(self._api.inspect_image(name)["Id"])

    def push(
        self,
        image: str,
        target: str,
        user: str,
        password: str,
        *,
        on_detail: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Push an image to a registry.

        Args:
            image: The image.
            target: ``registry/repository:tag``; the engine knows the image by that name only while it is pushed.
            user: Who signs in to the registry.
            password: With which password.
            on_detail: Told what the engine says of its progress.

        Raises:
            EngineError: the engine does not have it, or the registry did not take it.
        """
        repository, _, tag = target.rpartition(":")
        with explained(f"push {target!r}", self.address, image=image):
            if image != target:
                self._api.tag(image, repository, tag)
            try:
                said = self._api.push(
                    repository,
                    tag=tag,
                    stream=True,
                    decode=True,
                    auth_config={"username": user, "password": password},
                )
                for item in said:
                    if "error" in item:
                        raise EngineError(f"{target!r} was not accepted: {str(item['error']).strip().rstrip('.')}.")
                    text = " ".join(str(item[key]) for key in ("id", "status", "progress") if item.get(key))
                    if text:
                        on_detail(text[:100])
            finally:
                if image != target:
                    self._api.remove_image(target, noprune=True)

    # --- a job's things ---

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> str:
        """Make a bridge network.

        Returns:
            Its id.
        """
        with explained(f"make the network {name!r}", self.address):
            made = self._api.create_network(
                name, driver="bridge", labels=dict(labels), check_duplicate=True, internal=internal
            )
        return str(made["Id"])

    def gateway(self, name: str) -> str:
        """The address of this machine in a network.

        Raises:
            EngineError: the network has none.
        """
        with explained(f"inspect the network {name!r}", self.address):
            found = self._api.inspect_network(name)
        gateways = [str(part["Gateway"]) for part in found.get("IPAM", {}).get("Config") or () if part.get("Gateway")]
        if gateways:
            return gateways[0].partition("/")[0]
        bridge = (found.get("Options") or {}).get("com.docker.network.bridge.name", "")
        if (address := interfaces.addresses().get(bridge)) is None:
            raise EngineError(f"the network {name!r} has no gateway, so its containers cannot reach this machine.")
        return str(address.ip)

    def create(self, plan: ContainerPlan) -> str:
        """Make a container, without starting it.

        Returns:
            Its id.
        """
        import docker

        api = self._api
        requests = None
        if plan.gpus is not None:
            devices = {"device_ids": [str(gpu) for gpu in plan.gpus]} if plan.gpus else {"count": -1}
            requests = [docker.types.DeviceRequest(capabilities=[["gpu"]], **devices)]
        mounts = [
            docker.types.Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
            for mount in plan.mounts
        ]
        with explained(f"make container {plan.name!r}", self.address, image=plan.image):
            host_config = api.create_host_config(
                mounts=mounts,
                shm_size=plan.limits.shm_size,
                mem_limit=plan.limits.memory,
                nano_cpus=round(plan.limits.cpus * 1e9) if plan.limits.cpus is not None else None,
                device_requests=requests,
                # The record keeps the logs; the engine's own would be a second copy of them.
                log_config=docker.types.LogConfig(type=docker.types.LogConfig.types.NONE),
            )
            made = api.create_container(
                plan.image,
                command=list(plan.command),
                entrypoint=list(plan.entrypoint) or None,
                hostname=plan.host,
                name=plan.name,
                environment=dict(plan.environment),
                labels=dict(plan.labels),
                host_config=host_config,
                networking_config=api.create_networking_config(
                    {plan.network: api.create_endpoint_config(aliases=[plan.host])}
                ),
                stdin_open=plan.lifeline,
                detach=False,
            )
        return str(made["Id"])

    def put(self, container: str, archive: bytes) -> None:
        """Unpack a tar archive into a container's own file system, which goes with it."""
        with explained("put files into a container", self.address):
            self._api.put_archive(container, "/", archive)

    def attach(self, container: str, *, stdin: bool) -> socket.socket:
        """The connection on which a container prints, and on which its standard input stays open."""
        params = {"stdout": 1, "stderr": 1, "stream": 1, **({"stdin": 1} if stdin else {})}
        with explained("attach to a container", self.address):
            stream = self._api.attach_socket(container, params=params)
        # The SDK's file-like object owns the HTTP response, whose end would close the connection: keep a copy.
        raw = getattr(stream, "_sock", stream)
        return socket.socket(fileno=os.dup(raw.fileno()))

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What the engine says of a container; None when that was removed."""
        import docker

        with explained("inspect a container", self.address):
            try:
                return dict(self._api.inspect_container(container))
            except docker.errors.NotFound:
                return None

    def is_running(self, container: str) -> bool:
        """Whether a container is there and runs."""
        found = self.inspect(container)
        return found is not None and bool(found["State"]["Running"])

    def address_in(self, network: str, container: str) -> str:
        """The address of a container in a network; empty when it has ended already."""
        found = self.inspect(container) or {"NetworkSettings": {"Networks": {}}}
        return str((found["NetworkSettings"]["Networks"].get(network) or {}).get("IPAddress") or "")

    def ended_in(self, container: str, code: int | None) -> Ended:
        """How a program ended in a container that is kept; ``code`` is None when the container ended with it."""
        if code == 0:
            return Ended(exit_code=0)
        return self.wait(container) if code is None else self._ended(container, code)

    def start(self, container: str, plan: ContainerPlan) -> None:
        """Start a container."""
        with explained(f"start container {plan.name!r}", self.address, image=plan.image, plan=plan):
            self._api.start(container)
            if plan.limits.link is not None:
                pid = int(self._api.inspect_container(container)["State"]["Pid"])
                if pid:  # else it has ended already, and says so itself
                    links.shape(pid, plan.limits.link)

    def wait(self, container: str) -> Ended:
        """Wait for a container's end, however long it takes."""
        import docker

        with explained("wait for a container", self.address):
            try:
                return self._ended(container, int(self._api.wait(container, timeout=None)["StatusCode"]))
            except docker.errors.NotFound:
                return self._ended(container, 128 + signal.SIGKILL)

    def _ended(self, container: str, code: int) -> Ended:
        if (found := self.inspect(container)) is None:
            return Ended(exit_code=code, error="the container was removed from outside")
        state = found["State"]
        error = "" if state["Running"] else str(state.get("Error") or "").strip()
        return Ended(exit_code=code, out_of_memory=bool(state.get("OOMKilled")), error=error)

    def kill(self, container: str, name: str) -> None:
        """Send a signal to a container; harmless when it has ended."""
        import docker

        with contextlib.suppress(docker.errors.APIError):
            self._api.kill(container, name)

    def run(self, image: str, entrypoint: list[str], mounts: list[tuple[str, str]], labels: Mapping[str, str]) -> None:
        """Run a command in a container of its own, without a network, and remove it.

        Raises:
            EngineError: it could not be run, or failed.
        """
        import docker

        with explained(f"run {entrypoint[0]!r} in image {image!r}", self.address, image=image):
            made = self._api.create_container(
                image,
                entrypoint=entrypoint,
                user="0",
                labels=dict(labels),
                network_disabled=True,
                host_config=self._api.create_host_config(
                    mounts=[docker.types.Mount(target, source, type="bind") for source, target in mounts]
                ),
            )["Id"]
            try:
                self._api.start(made)
                code = int(self._api.wait(made)["StatusCode"])
                said = self._api.logs(made).decode("utf-8", "replace").strip()
            finally:
                self._api.remove_container(made, v=True, force=True)
        if code != 0:
            raise EngineError(f"{entrypoint[0]!r} in image {image!r} failed: {said or f'exit code {code}'}")

    # --- the end ---

    def leftovers(self, labels: Mapping[str, str] | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The containers and the networks of jobs: of all, or of those with these labels."""
        wanted = {"label": [f"{name}={value}" for name, value in (labels or {}).items()] or [JOB_LABEL]}
        with explained("list containers", self.address):
            return (
                list(self._api.containers(all=True, filters=wanted)),
                list(self._api.networks(filters=wanted)),
            )

    def remove_container(self, container: str) -> None:
        """Remove a container with its volumes, running or not; harmless when it is gone."""
        import docker

        with explained("remove a container", self.address):
            try:
                self._api.remove_container(container, v=True, force=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if "already in progress" not in str(error):
                    raise

    def remove_network(self, network: str) -> None:
        """Remove a network; harmless when it is gone."""
        import docker

        with explained("remove a network", self.address):
            with contextlib.suppress(docker.errors.NotFound):
                self._api.remove_network(network)

    def remove_all(self, labels: Mapping[str, str]) -> int:
        """Remove everything with these labels.

        Returns:
            How many things there were.
        """
        containers, networks = self.leftovers(labels)
        for item in containers:
            self.remove_container(str(item["Id"]))
        for item in networks:
            self.remove_network(str(item["Id"]))
        return len(containers) + len(networks)
