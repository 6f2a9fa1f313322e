"""Send requests to a Docker-compatible container engine over HTTP, and inspect, build and push its images.

``DOCKER_HOST`` chooses the engine: a Unix socket, or an address without TLS. Only building and pushing images uses
Docker's own SDK. Importing that SDK takes 0.125 s, which would delay every job.

Source: Docker Engine API (https://docs.docker.com/reference/api/engine/). The request paths contain no API version, so
the engine uses its own version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from estimators.backends.images.errors import AbsentError, EngineError, build_error, reached, refusal
from estimators.provision.progress import SILENT, ProgressDisplay

#: Maximum number of seconds until the response to a request that does not wait for a container. The limit also holds
#: for each step of a build.
_TIMEOUT = 120
#: The engine's address if DOCKER_HOST is not set.
_SOCKET = "unix:///var/run/docker.sock"


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """A container engine's description of an image.

    Attributes:
        id: The image's id.
        labels: The image's labels.
        user: The user that the image's programs run as, written as in a Dockerfile's ``USER``. Empty for root.
        environment: The image's environment variables, as ``NAME=value``.
    """

    id: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    environment: tuple[str, ...] = ()


class ImageEngine:
    """A client of a container engine that inspects, imports, builds and pushes images.

    The methods block, and may raise an :class:`EngineError`. Several threads may use the same client.

    Args:
        environment: The environment variables to use instead of this process's variables.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.variables = dict(os.environ if environment is None else environment)
        self.address = self.variables.get("DOCKER_HOST") or _SOCKET

    def connect(self, timeout: float | None = _TIMEOUT) -> http.client.HTTPConnection:
        """Connect to the container engine.

        Raises:
            OSError: the engine cannot be reached, or connections to its address are not supported.
        """
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

    def ask(
        self,
        action: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout: float | None = _TIMEOUT,
        image: str | None = None,
    ) -> Any:
        """Send a request to the container engine.

        Args:
            action: The requested action, for the message "the container engine cannot …".
            method: The HTTP method of the request.
            path: The URL path of the request.
            body: The request's body: bytes, or a value to send as JSON.
            query: The query parameters of the URL.
            timeout: The longest time until the response, in seconds. If None, the time is not limited.
            image: The image that the request uses, for error messages.

        Returns:
            The engine's response, parsed from JSON, or None if the response is empty.

        Raises:
            AbsentError: an object in the path does not exist.
            EngineError: the engine cannot be reached, or refuses the request.
        """
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        words = f"{urllib.parse.quote(path)}?{urllib.parse.urlencode(query or {})}"
        with reached(self.address), contextlib.closing(self.connect(timeout)) as connection:
            connection.request(method, words, data, {"Content-Type": kind})
            response = connection.getresponse()
            answer = response.read()
        if response.status >= 400:
            raise refusal(action, response.status, answer, image)
        return json.loads(answer) if answer else None

    def info(self) -> dict[str, Any]:
        """Return the container engine's description of itself, like ``docker info``."""
        return dict(self.ask("describe itself", "GET", "/info"))

    def image(self, name: str) -> ImageFacts:
        """Return the container engine's description of an image.

        Raises:
            AbsentError: the engine does not have the image.
        """
        found = self.ask(f"use image {name!r}", "GET", f"/images/{name}/json", image=name)
        config = found.get("Config") or {}
        return ImageFacts(
            id=str(found["Id"]),
            labels=dict(config.get("Labels") or {}),
            user=str(config.get("User") or ""),
            environment=tuple(config.get("Env") or ()),
        )

    def has_image(self, image: str) -> bool:
        """Return whether the container engine has an image."""
        with contextlib.suppress(AbsentError):
            return bool(self.image(image))
        return False

    # --- with Docker's own SDK ---

    @contextlib.contextmanager
    def _sdk(self, action: str, image: str | None = None) -> Iterator[Any]:
        """Return a context manager that yields the client of Docker's SDK.

        Errors of Docker's SDK are converted to :class:`EngineError`.
        """
        try:
            import docker
        except ImportError:
            raise EngineError(
                "Docker's Python SDK, which makes and pushes images, is not installed. Run `fleetfit install docker` "
                "(or `pip install docker`)."
            ) from None
        try:
            with reached(self.address):
                settings = docker.utils.kwargs_from_env(environment=self.variables)
                yield docker.APIClient(version="auto", timeout=_TIMEOUT, **settings)
        except docker.errors.APIError as error:
            raise refusal(action, error.status_code, str(error.explanation or error).encode(), image) from None
        except docker.errors.DockerException as error:
            with reached(self.address):
                raise OSError(str(error)) from None

    def import_image(self, archive: Path, name: str, changes: Sequence[str]) -> str:
        """Create an image from a tar archive of a file system.

        Args:
            archive: The path of the archive.
            name: The image's name.
            changes: Lines of a Dockerfile to apply to the image, such as ``ENV`` or ``CMD``.

        Returns:
            The image's id.
        """
        with self._sdk(f"import {name!r}") as api:
            api.import_image_from_file(str(archive), repository=name, tag="latest", changes=list(changes))
            return str(api.inspect_image(name)["Id"])

    def build(
        self, context: Path, name: str, arguments: Mapping[str, str], *, progress: ProgressDisplay = SILENT
    ) -> str:
        """Build an image from a folder with a Dockerfile.

        Args:
            context: The folder.
            name: The image's name.
            arguments: The build arguments of the Dockerfile.
            progress: The receiver of progress messages.

        Returns:
            The image's id.

        Raises:
            EngineError: a step failed. The message contains the last lines of the build's output.
        """
        said: list[str] = []
        progress.detail("sending the files to the engine")
        with self._sdk(f"build image {name!r}") as api:
            for item in api.build(
                path=str(context), tag=name, buildargs=dict(arguments), rm=True, forcerm=True, decode=True
            ):
                said += [line for line in str(item.get("stream", "")).splitlines() if line.strip()]
                if said and said[-1].startswith("Step "):
                    progress.detail(said[-1].strip()[:100])
                if "error" in item:
                    last = " / ".join(line.strip() for line in said[-4:])
                    raise EngineError(
                        build_error(name, str(item["error"]).strip(), last, arguments.get("BASE_IMAGE", ""))
                    )
            return str(api.inspect_image(name)["Id"])

    def push(self, image: str, target: str, user: str, password: str, *, progress: ProgressDisplay = SILENT) -> None:
        """Push an image to a registry.

        Args:
            image: The image's name in the container engine.
            target: The image's name in the registry: ``registry/repository:tag``. The engine has this name only during
                the push.
            user: The user name for the registry.
            password: The password for the registry.
            progress: The receiver of the engine's progress messages.

        Raises:
            EngineError: the engine does not have the image, or the registry did not accept the image.
        """
        repository, _, tag = target.rpartition(":")
        signed_in = {"username": user, "password": password}
        with self._sdk(f"push {target!r}", image) as api:
            if image != target:
                api.tag(image, repository, tag)
            try:
                for item in api.push(repository, tag=tag, stream=True, decode=True, auth_config=signed_in):
                    if "error" in item:
                        raise EngineError(f"{target!r} was not accepted: {str(item['error']).strip().rstrip('.')}.")
                    text = " ".join(str(item[key]) for key in ("id", "status", "progress") if item.get(key))
                    if text:
                        progress.detail(text[:100])
            finally:
                if image != target:
                    api.remove_image(target, noprune=True)
