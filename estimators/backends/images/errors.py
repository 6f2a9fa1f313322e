"""Explain a container engine's errors to a user."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator

from estimators.backends.images.toolkit import IMAGE
from estimators.job.errors import BackendError


class EngineError(BackendError):
    """Raised if the container engine cannot be reached, refuses a request, or fails.

    If a remedy is known, the message contains it.
    """


class AbsentError(EngineError):
    """Raised if the container engine does not have the object that a request names."""


@contextlib.contextmanager
def reached(address: str) -> Iterator[None]:
    """Convert connection errors to an :class:`EngineError` that says why the container engine cannot be reached.

    Args:
        address: The engine's address.
    """
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(_unreachable(str(error), address)) from None


def refusal(action: str, status: int, answer: bytes, image: str | None = None) -> EngineError:
    """Return the exception for an error response of the container engine.

    Args:
        action: The requested action, for the message "the container engine cannot …".
        status: The HTTP status of the response.
        answer: The body of the response, which is JSON with a ``message``.
        image: The image that the request used, or None.
    """
    text = answer.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError):
        said = json.loads(text)
        message = said.get("message") if isinstance(said, dict) else None
        text = message.strip() if isinstance(message, str) else ""
    text = text or f"it gave no reason (HTTP status {status})"
    if status == http.client.NOT_FOUND:
        absent = image is not None and re.search(r"no such image|image not known|no pull access", text, re.IGNORECASE)
        return AbsentError(_no_image(image or "?") if absent else _meaning(action, text, image))
    return EngineError(_meaning(action, text, image))


def _no_image(image: str) -> str:
    if image.partition(":")[0] == IMAGE:
        return f"image {image!r} does not exist: run `fleetfit image build`."
    return f"image {image!r} is not on this engine: run `docker pull {image}` or `docker load`."


def build_error(name: str, error: str, last: str, base: str) -> str:
    unreachable = re.search(r"pull access denied|manifest unknown|not found|lookup|dial tcp|Client.Timeout|EOF", error)
    if base and unreachable and (base in error or "Get " in error):
        return (
            f"the base image {base!r} is not available ({error.rstrip('.')}). Without a registry, `fleetfit image "
            "base` builds a base image from Debian's packages. You can also name an existing image with --base."
        )
    return f"image {name!r} could not be built: {_meaning('build it', error)} The build's last lines: {last}"


def _unreachable(text: str, address: str) -> str:
    if "Permission denied" in text or "EACCES" in text:
        return (
            f"you have no permission to use the container engine at {address}. Add yourself to its group "
            "(`sudo usermod -aG docker $USER`) and log in again."
        )
    if "FileNotFoundError" in text or "No such file" in text:
        return (
            f"there is no container engine at {address}. Install and start Docker, or set DOCKER_HOST to the socket "
            "of a compatible engine. instance_type='local_process' needs no engine."
        )
    if "Connection refused" in text:
        return f"the container engine at {address} is not running. Start it (`sudo systemctl start docker`)."
    return f"the container engine at {address} does not answer: {text}"


#: Pattern of the engine's message, and the remedy.
_REMEDIES = (
    (
        r"no space left on device",
        "The engine's disk is full: `docker system prune` and `fleetfit clean` free some space.",
    ),
    (
        r"is already in use by container|network with name .* already exists",
        "Another job of this name is running, or was killed: `fleetfit clean` removes leftovers.",
    ),
    (
        r"non-overlapping IPv4 address pool|all predefined address pools",
        "The engine has no address range left for another network: `fleetfit clean` and `docker network prune` remove "
        "unused networks.",
    ),
    (r"port is already allocated|address already in use", "Another program uses the port."),
    (
        r"could not select device driver|nvidia|CDI device",
        "The engine has no GPU runtime: install the NVIDIA Container Toolkit and restart the engine.",
    ),
    (
        r"bind source path does not exist",
        "The engine sees only its own machine's files: local containers need an engine on this machine.",
    ),
    (r"minimum memory limit", "Ask for more with the backend option 'memory'."),
    (r"range of CPUs", "Ask for fewer cores with the backend option 'cpus'."),
    (
        r"duplicate mount point|error mounting|cannot be mounted",
        "The backend option 'mounts' maps to a path that is already in use: give another path of the container.",
    ),
)


def _meaning(action: str, text: str, image: str | None = None) -> str:
    missing = re.search(r'exec: \\?"(.+?)\\?": .*(?:not found|no such file|permission denied|is a directory)', text)
    if image is not None and missing is not None:
        return (
            f"image {image!r} has no executable program {missing[1]!r}. In an image that follows SageMaker's "
            "contract, `docker run IMAGE train` starts the training. To start another program, name it in the "
            "request's ContainerEntrypoint."
        )
    remedy = next((f" {words}" for pattern, words in _REMEDIES if re.search(pattern, text, re.IGNORECASE)), "")
    return f"the container engine cannot {action}: {text.rstrip('.')}.{remedy}"
