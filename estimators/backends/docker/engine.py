"""Manage the containers and networks of a Docker-compatible container engine.

Source: Docker Engine API (https://docs.docker.com/reference/api/engine/).
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from container.contract.frozen import dataclass
from container.system import interfaces
from container.system.background import Background
from container.system.loop import Loop
from estimators.backends.docker import links
from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.images.engine import ImageEngine
from estimators.backends.images.errors import AbsentError, EngineError, reached, refusal
from estimators.job.errors import FleetfitError

T = TypeVar("T")

#: If a container has no terminal, each piece of its output has this header: the stream's number, and the length.
FRAME = struct.Struct(">BxxxL")


@dataclass(frozen=True, kw_only=True)
class ContainerEnd:
    """The way in which a container has ended.

    Attributes:
        exit_code: The exit code of the container's first process. If a signal has killed this process, the exit code
            is 128 plus the signal's number.
        out_of_memory: Whether the kernel killed a process in the container because memory ran out.
        error: The container engine's error message, or "".
    """

    exit_code: int
    out_of_memory: bool = False
    error: str = ""

    @property
    def was_killed(self) -> bool:
        """Return whether memory ran out in the container, or a signal other than SIGTERM killed its first process."""
        return self.out_of_memory or (self.exit_code >= 128 and self.exit_code != 128 + signal.SIGTERM)


class Engine(ImageEngine):
    """A client of a container engine for containers and networks.

    The methods block, and may raise an :class:`EngineError`.
    """

    def is_rootless(self) -> bool:
        """Return whether the container engine runs as an ordinary user. This user appears as root in the engine's
        containers.
        """
        info = self.info()  # Docker reports a security option, Podman a key
        return bool(info.get("Rootless")) or "name=rootless" in (info.get("SecurityOptions") or ())

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> None:
        """Create a bridge network."""
        network = {"Name": name, "Driver": "bridge", "Labels": dict(labels), "Internal": internal}
        self.ask(f"make the network {name!r}", "POST", "/networks/create", {**network, "CheckDuplicate": True})

    def gateway(self, name: str) -> str:
        """Return this machine's address in a network of the container engine.

        Raises:
            EngineError: the network has no gateway.
        """
        found = self.ask(f"inspect the network {name!r}", "GET", f"/networks/{name}")
        for part in found.get("IPAM", {}).get("Config") or ():
            if part.get("Gateway"):
                return str(part["Gateway"]).partition("/")[0]
        bridge = (found.get("Options") or {}).get("com.docker.network.bridge.name", "")
        if (address := interfaces.addresses().get(bridge)) is None:
            raise EngineError(f"the network {name!r} has no gateway, so its containers cannot reach this machine.")
        return str(address.ip)

    def create(self, plan: ContainerPlan) -> str:
        """Create a container without starting it, and return its id."""
        action, query = f"make container {plan.name!r}", {"name": plan.name} if plan.name else {}
        return str(self.ask(action, "POST", "/containers/create", settings(plan), query=query, image=plan.image)["Id"])

    def put(self, container: str, archive: bytes) -> None:
        """Unpack a tar archive into a container's own file system. The files are deleted with the container."""
        place = f"/containers/{container}/archive"
        self.ask("put files into a container", "PUT", place, archive, query={"path": "/"})

    def attach(self, container: str, plan: ContainerPlan) -> socket.socket:
        """Return a connection to a container's output and standard input. Closing the connection closes the standard
        input.
        """
        query = {"stream": 1, "stdout": 1, "stderr": 1, **({"stdin": 1} if plan.lifeline else {})}
        path = f"/containers/{container}/attach?{urllib.parse.urlencode(query)}"
        with reached(self.address), contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, headers={"Connection": "Upgrade", "Upgrade": "tcp"})
            stream = connection.sock  # closing the response closes the connection, too
            duplicate = stream.dup()
            response = connection.getresponse()
            if response.status < 400:
                return duplicate
            duplicate.close()
            # Podman checks at this point whether the container's program exists.
            raise refusal("attach to a container", response.status, response.read(), plan.image)

    def inspect(self, container: str) -> dict[str, Any] | None:
        """Return the container engine's description of a container. Return None if the container was removed."""
        with contextlib.suppress(AbsentError):
            return dict(self.ask("inspect a container", "GET", f"/containers/{container}/json"))
        return None

    def is_running(self, container: str) -> bool:
        """Return whether a container exists and is running."""
        found = self.inspect(container)
        return found is not None and bool(found["State"]["Running"])

    def address_in(self, network: str, container: str) -> str:
        """Return a container's address in a network. Return "" if the container has ended."""
        found = self.inspect(container) or {"NetworkSettings": {"Networks": {}}}
        return str((found["NetworkSettings"]["Networks"].get(network) or {}).get("IPAddress") or "")

    def start(self, container: str, plan: ContainerPlan) -> None:
        """Start a container. If the plan limits the container's link, limit the link's rate."""
        self.ask(f"start container {plan.name!r}", "POST", f"/containers/{container}/start", image=plan.image)
        if plan.limits.link is not None:
            found = self.inspect(container)
            if found is not None and (pid := int(found["State"]["Pid"])):  # otherwise the container has ended
                links.shape(pid, plan.limits.link)

    def wait(self, container: str) -> ContainerEnd:
        """Wait until a container has ended, and return how it has ended. There is no time limit."""
        code = 128 + signal.SIGKILL
        with contextlib.suppress(AbsentError):
            path = f"/containers/{container}/wait"
            code = int(self.ask("wait for a container", "POST", path, timeout=None)["StatusCode"])
        return self.ended(container, code)

    def ended(self, container: str, code: int) -> ContainerEnd:
        """Return how a container, or a program in a kept container, has ended.

        Args:
            container: The container's id.
            code: The exit code of the container or program. The other values are requested from the engine.
        """
        if (found := self.inspect(container)) is None:
            return ContainerEnd(exit_code=code, error="the container was removed from outside")
        state = found["State"]
        error = "" if state["Running"] else str(state.get("Error") or "").strip()
        return ContainerEnd(exit_code=code, out_of_memory=bool(state.get("OOMKilled")), error=error)

    def kill(self, container: str, name: str) -> None:
        """Send the signal ``name`` to a container. Ignore the engine's error, because the container may have ended."""
        with contextlib.suppress(EngineError):
            self.ask("send a signal to a container", "POST", f"/containers/{container}/kill", query={"signal": name})

    def run(self, plan: ContainerPlan) -> None:
        """Run a command in a new container, and remove the container afterwards.

        Raises:
            EngineError: the command could not be run, or failed.
        """
        made, said = self.create(plan), b""
        try:
            with self.attach(made, plan) as stream, stream.makefile("rb") as output:
                stream.settimeout(None)  # the container may print nothing for a long time
                self.start(made, plan)
                while header := output.read(FRAME.size):
                    said += output.read(FRAME.unpack(header)[1])
            code = self.wait(made).exit_code
        finally:
            self.remove_container(made)
        if code != 0:
            text = said.decode("utf-8", "replace").strip() or f"exit code {code}"
            raise EngineError(f"{plan.entrypoint[0]!r} in image {plan.image!r} failed: {text}")

    def leftovers(self, labels: Mapping[str, str] | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the containers and networks with the given labels. Without labels, return the containers and networks
        of all jobs.
        """
        wanted = [f"{name}={value}" for name, value in (labels or {}).items()] or [JOB_LABEL]
        query = {"filters": json.dumps({"label": wanted})}
        containers = self.ask("list containers", "GET", "/containers/json", query={"all": 1, **query})
        return containers, self.ask("list networks", "GET", "/networks", query=query)

    def remove_container(self, container: str) -> None:
        """Remove a container with its volumes, even if it is running. Do nothing if the container does not exist."""
        try:
            self.ask("remove a container", "DELETE", f"/containers/{container}", query={"v": 1, "force": 1})
        except AbsentError:
            return
        except EngineError as error:
            if "already in progress" not in str(error):
                raise

    def remove_network(self, network: str) -> None:
        """Remove a network. Do nothing if the network does not exist."""
        with contextlib.suppress(AbsentError):
            self.ask("remove a network", "DELETE", f"/networks/{network}")

    def remove_all(self, labels: Mapping[str, str]) -> int:
        """Remove all containers and networks with the given labels, and return their number."""
        containers, networks = self.leftovers(labels)
        for item in containers:
            self.remove_container(str(item["Id"]))
        for item in networks:
            self.remove_network(str(item["Id"]))
        return len(containers) + len(networks)


async def call(loop: Loop, work: Callable[[], T]) -> T:
    """Make a blocking call to the container engine in a thread, and return the call's result.

    Args:
        loop: The supervisor's event loop.
        work: The call.

    Raises:
        EngineError: the engine refused the request, or the engine's response cannot be understood.
        FleetfitError: the call failed for another reason.
        OSError: the call failed in the operating system.
    """
    try:
        return await Background.of(loop).call(work)
    except (FleetfitError, OSError):
        raise
    except Exception as error:
        raise EngineError(f"the container engine's answer cannot be understood: {error!r}.") from error


def settings(plan: ContainerPlan) -> dict[str, Any]:
    """Return the body of the request that creates a container."""
    limits = plan.limits
    mounts = [
        {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
        for mount in plan.mounts
    ]
    gpus = []
    if plan.gpus is not None:
        devices = {"Count": 0, "DeviceIDs": [str(gpu) for gpu in plan.gpus]} if plan.gpus else {"Count": -1}
        gpus = [{**devices, "Capabilities": [["gpu"]]}]
    return {
        "Image": plan.image,
        "Cmd": list(plan.command),
        "Entrypoint": list(plan.entrypoint) or None,
        "User": plan.user,
        "Hostname": plan.host,
        "Env": [f"{name}={value}" for name, value in plan.environment.items()],
        "Labels": dict(plan.labels),
        "HostConfig": {
            "Mounts": mounts,
            "ShmSize": limits.shm_size,
            "Memory": limits.memory or 0,
            "NanoCpus": round((limits.cpus or 0) * 1e9),
            "NetworkMode": "default" if plan.network else "none",
            "LogConfig": {"Type": "none"},  # the record keeps the logs
            "DeviceRequests": gpus,
        },
        "NetworkingConfig": {"EndpointsConfig": {plan.network: {"Aliases": [plan.host]}} if plan.network else {}},
        "AttachStdout": True,
        "AttachStderr": True,
        # When the supervisor's connection is closed, the engine closes the container's standard input.
        **dict.fromkeys(("AttachStdin", "OpenStdin", "StdinOnce"), plan.lifeline),
    }
