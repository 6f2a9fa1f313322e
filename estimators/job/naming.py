"""Create names of training jobs as the SageMaker SDK 2.x does: a base, followed by the time in milliseconds."""

from __future__ import annotations

import re
import threading
import time

#: The longest name that SageMaker accepts.
MAX_LENGTH = 63

_STAMP = re.compile(r"^(.+)-(\d{4}-\d{2}-\d{2}-\d{2}-\d{2}-\d{2}-\d{3}|\d{6}-\d{4})$")
_IMAGE = re.compile(r"^(?:.+/)?([^:/@]+)(?::[^:/]+)?(?:@.+)?$")

_lock = threading.Lock()
_last_ms = 0


def job_name(base: str) -> str:
    """Create a name, such as ``tensorflow-training-2026-11-21-06-17-00-123`` (UTC).

    Two names from one process never have the same time. A base that is too long is cut.
    """
    moment = _next_ms()
    stamp = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(moment // 1000)) + f"-{moment % 1000:03d}"
    return f"{base[: MAX_LENGTH - len(stamp) - 1]}-{stamp}"


def base_of_name(name: str) -> str:
    """Return the base of a name that was created by :func:`job_name` or the SageMaker SDK. Return other names
    unchanged.
    """
    match = _STAMP.match(name)
    return match.group(1) if match else name


def base_of_image(image: str) -> str:
    """Return the base of the names of jobs that use an image.

    The result for ``123.dkr.ecr…/tensorflow-training:2.11`` is ``tensorflow-training``. Characters that are not allowed
    in a job's name are replaced by hyphens.
    """
    match = _IMAGE.match(image)
    base = match.group(1) if match else image
    return re.sub(r"[^a-zA-Z0-9]+", "-", base).strip("-") or "training-job"


def _next_ms() -> int:
    """Return the time in milliseconds since the epoch. Each result is later than the previous result."""
    global _last_ms
    with _lock:
        _last_ms = max(time.time_ns() // 1_000_000, _last_ms + 1)
        return _last_ms
