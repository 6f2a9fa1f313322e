"""A Docker-compatible engine, by its HTTP interface, and what its errors mean to a user.

``DOCKER_HOST`` chooses the engine: a unix socket, or an address without TLS. Docker's own SDK takes an eighth of a
second to import, which every job would wait for: only :mod:`estimators.backends.images` needs it.

Source: Docker Engine API (https://docs.docker.com/reference/api/engine/), by paths without a version: the engine's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from container.system import interfaces
from estimators.backends.docker import links
from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.docker.engine_errors import AbsentError, reached, refusal
from estimators.backends.docker.engine_errors import EngineError as EngineError
from estimators.backends.docker.streams import Frames

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
        """Return whether something in it was killed."""
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


@dataclasses.dataclass(frozen=True)
class Running:
    """A container whose first process trains, or one that is kept and in which it does.

    Attributes:
        container: Its id.
        stream: The connection on which it prints, and on which its standard input stays open.
        decode: Makes what it printed of what comes there.
        wait: Waits for the end, in a thread.
    """

    container: str
    stream: socket.socket
    decode: Callable[[bytes], bytes]
    wait: Callable[[], Ended]


class Engine:
    """The engine. Its methods block; threads may share it. Each may raise an :class:`EngineError`.

    Args:
        environment: Instead of this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.variables = dict(os.environ if environment is None else environment)
        self.address = self.variables.get("DOCKER_HOST") or _SOCKET

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        scheme, _, place = self.address.partition(":")
        place = place.removeprefix("//")
        if scheme not in ("unix", "tcp", "http"):
            raise OSError(f"addresses of this kind are not supported: {scheme}")
        if scheme != "unix" and self.variables.get("DOCKER_TLS_VERIFY"):
            raise OSError("connections by TLS (DOCKER_TLS_VERIFY) are not supported")
        connection = http.client.HTTPConnection("localhost" if scheme == "unix" else place, timeout=timeout)
        if scheme == "unix":
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout)
            connection.sock.connect(place)
        else:
            connection.connect()
        return connection

    def _ask(
        self,
        action: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout: float | None = _TIMEOUT,
        image: str | None = None,
        plan: ContainerPlan | None = None,
    ) -> bytes:
        """Ask the engine for something, and return its answer.

        Args:
            action: What it cannot do, for the message.
            method: The request's method.
            path: The request's path.
            body: What is sent: bytes, or what becomes JSON.
            query: The path's parameters.
            timeout: How long it may take, in seconds.
            image: The image that is used.
            plan: The container that is started.

        Raises:
            AbsentError: something that the path names is not there.
        """
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        words = f"{urllib.parse.quote(path)}?{urllib.parse.urlencode(query or {})}"
        with reached(self.address), contextlib.closing(self._connect(timeout)) as connection:
            connection.request(method, words, data, {"Content-Type": kind})
            response = connection.getresponse()
            answer = response.read()
        if response.status >= 400:
            raise refusal(action, response.status, answer, image, plan)
        return answer

    # --- what there is ---

    def info(self) -> dict[str, Any]:
        """``docker info``."""
        return dict(json.loads(self._ask("describe itself", "GET", "/info")))

    def is_rootless(self) -> bool:
        """Return whether the engine runs as an ordinary user, who is root in its containers."""
        info = self.info()  # Docker says it among the security options, Podman by a key of its own
        return bool(info.get("Rootless")) or "name=rootless" in (info.get("SecurityOptions") or ())

    def image(self, name: str) -> ImageFacts:
        """Return what the engine says of an image.

        Raises:
            AbsentError: the engine does not have it.
        """
        found = json.loads(self._ask(f"use image {name!r}", "GET", f"/images/{name}/json", image=name))
        config = found.get("Config") or {}
        return ImageFacts(
            id=str(found["Id"]),
            labels=dict(config.get("Labels") or {}),
            user=str(config.get("User") or ""),
            environment=tuple(config.get("Env") or ()),
        )

    def has_image(self, image: str) -> bool:
        """Return whether the engine has an image."""
        with contextlib.suppress(AbsentError):
            return bool(self.image(image))
        return False

    # --- a job's things ---

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> None:
        """Make a bridge network."""
        network = {"Name": name, "Driver": "bridge", "Labels": dict(labels), "Internal": internal}
        self._ask(f"make the network {name!r}", "POST", "/networks/create", {**network, "CheckDuplicate": True})

    def gateway(self, name: str) -> str:
        """Return the address of this machine in a network.

        Raises:
            EngineError: the network has none.
        """
        found = json.loads(self._ask(f"inspect the network {name!r}", "GET", f"/networks/{name}"))
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
        host_config: dict[str, Any] = {
            "Mounts": [
                {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
                for mount in plan.mounts
            ],
            "ShmSize": plan.limits.shm_size,
            "Memory": plan.limits.memory or 0,
            "NanoCpus": round((plan.limits.cpus or 0) * 1e9),
            "NetworkMode": "default" if plan.network else "none",
            # The record keeps the logs; the engine's own would be a second copy of them.
            "LogConfig": {"Type": "none"},
        }
        if plan.gpus is not None:
            devices = {"Count": 0, "DeviceIDs": [str(gpu) for gpu in plan.gpus]} if plan.gpus else {"Count": -1}
            host_config["DeviceRequests"] = [{**devices, "Capabilities": [["gpu"]]}]
        settings = {
            "Image": plan.image,
            "Cmd": list(plan.command),
            "Entrypoint": list(plan.entrypoint) or None,
            "User": plan.user,
            "Hostname": plan.host,
            "Env": [f"{name}={value}" for name, value in plan.environment.items()],
            "Labels": dict(plan.labels),
            "HostConfig": host_config,
            "NetworkingConfig": {"EndpointsConfig": {plan.network: {"Aliases": [plan.host]}} if plan.network else {}},
            "AttachStdout": True,
            "AttachStderr": True,
            # It ends when the supervisor's connection does.
            **dict.fromkeys(("AttachStdin", "OpenStdin", "StdinOnce"), plan.lifeline),
        }
        name = {"name": plan.name} if plan.name else {}
        action = f"make container {plan.name!r}"
        made = self._ask(action, "POST", "/containers/create", settings, query=name, image=plan.image)
        return str(json.loads(made)["Id"])

    def put(self, container: str, archive: bytes) -> None:
        """Unpack a tar archive into a container's own file system, which goes with it."""
        place = f"/containers/{container}/archive"
        self._ask("put files into a container", "PUT", place, archive, query={"path": "/"})

    def attach(self, container: str, plan: ContainerPlan) -> socket.socket:
        """Return the connection on which a container prints, and on which its standard input stays open."""
        query = {"stream": 1, "stdout": 1, "stderr": 1, **({"stdin": 1} if plan.lifeline else {})}
        path = f"/containers/{container}/attach?{urllib.parse.urlencode(query)}"
        with reached(self.address), contextlib.closing(self._connect(_TIMEOUT)) as connection:
            stream = connection.sock.dup()  # the response would close the connection with itself
            try:
                connection.request("POST", path, headers={"Connection": "Upgrade", "Upgrade": "tcp"})
                response = connection.getresponse()
                if response.status >= 400:
                    # Podman looks for the container's program here.
                    raise refusal("attach to a container", response.status, response.read(), plan.image, plan)
            except BaseException:
                stream.close()
                raise
        return stream

    def inspect(self, container: str) -> dict[str, Any] | None:
        """Return what the engine says of a container; None when that was removed."""
        with contextlib.suppress(AbsentError):
            return dict(json.loads(self._ask("inspect a container", "GET", f"/containers/{container}/json")))
        return None

    def is_running(self, container: str) -> bool:
        """Return whether a container is there and runs."""
        found = self.inspect(container)
        return found is not None and bool(found["State"]["Running"])

    def address_in(self, network: str, container: str) -> str:
        """Return the address of a container in a network; empty when it has ended already."""
        found = self.inspect(container) or {"NetworkSettings": {"Networks": {}}}
        return str((found["NetworkSettings"]["Networks"].get(network) or {}).get("IPAddress") or "")

    def start(self, container: str, plan: ContainerPlan) -> None:
        """Start a container."""
        path = f"/containers/{container}/start"
        self._ask(f"start container {plan.name!r}", "POST", path, image=plan.image, plan=plan)
        if plan.limits.link is not None:
            found = self.inspect(container)
            if found is not None and (pid := int(found["State"]["Pid"])):  # else it has ended, and says so itself
                links.shape(pid, plan.limits.link)

    def wait(self, container: str) -> Ended:
        """Wait for a container's end, however long it takes."""
        try:
            answer = self._ask("wait for a container", "POST", f"/containers/{container}/wait", timeout=None)
        except AbsentError:
            return self._ended(container, 128 + signal.SIGKILL)
        return self._ended(container, int(json.loads(answer)["StatusCode"]))

    def ended_in(self, container: str, code: int | None) -> Ended:
        """How a program ended in a container that is kept; ``code`` is None when the container ended with it."""
        if code == 0:
            return Ended(exit_code=0)
        return self.wait(container) if code is None else self._ended(container, code)

    def _ended(self, container: str, code: int) -> Ended:
        if (found := self.inspect(container)) is None:
            return Ended(exit_code=code, error="the container was removed from outside")
        state = found["State"]
        error = "" if state["Running"] else str(state.get("Error") or "").strip()
        return Ended(exit_code=code, out_of_memory=bool(state.get("OOMKilled")), error=error)

    def kill(self, container: str, name: str) -> None:
        """Send a signal to a container; harmless when it has ended."""
        with contextlib.suppress(EngineError):
            self._ask("send a signal to a container", "POST", f"/containers/{container}/kill", query={"signal": name})

    def run(self, plan: ContainerPlan) -> None:
        """Run a command in a container, and remove it.

        Raises:
            EngineError: it could not be run, or failed.
        """
        made = self.create(plan)
        try:
            with self.attach(made, plan) as stream, stream.makefile("rb") as output:
                stream.settimeout(None)  # it may print nothing for an hour
                self.start(made, plan)
                said = Frames().feed(output.read())
            code = self.wait(made).exit_code
        finally:
            self.remove_container(made)
        if code != 0:
            text = said.decode("utf-8", "replace").strip() or f"exit code {code}"
            raise EngineError(f"{plan.entrypoint[0]!r} in image {plan.image!r} failed: {text}")

    # --- the end ---

    def leftovers(self, labels: Mapping[str, str] | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the containers and the networks of jobs: of all, or of those with these labels."""
        wanted = [f"{name}={value}" for name, value in (labels or {}).items()] or [JOB_LABEL]
        query = {"filters": json.dumps({"label": wanted})}
        containers = self._ask("list containers", "GET", "/containers/json", query={"all": 1, **query})
        return json.loads(containers), json.loads(self._ask("list networks", "GET", "/networks", query=query))

    def remove_container(self, container: str) -> None:
        """Remove a container with its volumes, running or not; harmless when it is gone."""
        try:
            self._ask("remove a container", "DELETE", f"/containers/{container}", query={"v": 1, "force": 1})
        except AbsentError:
            return
        except EngineError as error:
            if "already in progress" not in str(error):
                raise

    def remove_network(self, network: str) -> None:
        """Remove a network; harmless when it is gone."""
        with contextlib.suppress(AbsentError):
            self._ask("remove a network", "DELETE", f"/networks/{network}")

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
