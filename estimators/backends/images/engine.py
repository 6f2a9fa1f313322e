"""A Docker-compatible engine: its HTTP interface, and the images that it has, makes and pushes.

``DOCKER_HOST`` chooses the engine: a unix socket, or an address without TLS. Docker's own SDK takes an eighth of a
second to import, which every job would wait for: only making and pushing images needs the SDK.

Source: Docker Engine API (https://docs.docker.com/reference/api/engine/), by paths without a version: the engine's own.
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

from estimators.backends.images.errors import AbsentError, EngineError, build_error, reached, refusal
from estimators.provision.progress import SILENT, Progress

#: Seconds that the engine has to answer a request that does not wait for a container, and for each step of a build.
_TIMEOUT = 120
#: Where the engine listens if DOCKER_HOST says nothing.
_SOCKET = "unix:///var/run/docker.sock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Describe an image, as its engine does.

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


class ImageEngine:
    """Ask an engine. The methods block; threads may share the object. Each may raise an :class:`EngineError`.

    Args:
        environment: Instead of this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.variables = dict(os.environ if environment is None else environment)
        self.address = self.variables.get("DOCKER_HOST") or _SOCKET

    def connect(self, timeout: float | None = _TIMEOUT) -> http.client.HTTPConnection:
        """Connect to the engine.

        Raises:
            OSError: it cannot be reached.
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
        """Ask the engine for something, and return the answer: read from JSON, or None.

        Args:
            action: What it cannot do, for the message.
            method: The request's method.
            path: The request's path.
            body: What is sent: bytes, or what becomes JSON.
            query: The path's parameters.
            timeout: How long it may take, in seconds.
            image: The image that is used.

        Raises:
            AbsentError: something that the path names is not there.
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
        """Return what the engine says of itself: ``docker info``."""
        return dict(self.ask("describe itself", "GET", "/info"))

    def image(self, name: str) -> ImageFacts:
        """Return what the engine says of an image.

        Raises:
            AbsentError: the engine does not have it.
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
        """Return whether the engine has an image."""
        with contextlib.suppress(AbsentError):
            return bool(self.image(image))
        return False

    # --- with Docker's own SDK ---

    @contextlib.contextmanager
    def _sdk(self, action: str, image: str | None = None) -> Iterator[Any]:
        """Give the SDK's connection, and turn its errors into :class:`EngineError`."""
        try:
            import docker
        except ImportError:
            raise EngineError(
                "Docker's Python SDK, which containers need, is not installed. Run `fleetfit install docker` (or "
                "`pip install docker`)."
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
        """Make an image of a file system's tar archive.

        Args:
            archive: The archive.
            name: The image's name.
            changes: Lines of a Dockerfile to apply: ``ENV``, ``CMD`` …

        Returns:
            Its id.
        """
        with self._sdk(f"import {name!r}") as api:
            api.import_image_from_file(str(archive), repository=name, tag="latest", changes=list(changes))
            return str(api.inspect_image(name)["Id"])

    def build(self, context: Path, name: str, arguments: Mapping[str, str], *, progress: Progress = SILENT) -> str:
        """Build an image of a folder with a Dockerfile.

        Returns:
            Its id.

        Raises:
            EngineError: a step failed; the message has its last lines.
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

    def push(self, image: str, target: str, user: str, password: str, *, progress: Progress = SILENT) -> None:
        """Push an image to a registry.

        Args:
            image: The image.
            target: ``registry/repository:tag``; the engine knows the image by that name only while it is pushed.
            user: Who signs in to the registry.
            password: With which password.
            progress: Told what the engine says of its progress.

        Raises:
            EngineError: the engine does not have it, or the registry did not take it.
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
