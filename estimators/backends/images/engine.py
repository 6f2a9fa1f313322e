"""What of an engine images are made and pushed with: Docker's own SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError, build_error, reached, refusal

#: Seconds that a step of a build may say nothing.
_TIMEOUT = 120


class ImageEngine(Engine):
    """An engine that makes images.

    Raises:
        EngineError: there is no SDK.
    """

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
        with self._sdk(f"build image {name!r}") as api:
            for item in api.build(
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
            return str(api.inspect_image(name)["Id"])

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
        with self._sdk(f"push {target!r}", image) as api:
            if image != target:
                api.tag(image, repository, tag)
            try:
                said = api.push(
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
                    api.remove_image(target, noprune=True)
