"""What can be seen to be wrong with a job for containers, before anything is started."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container import launchers
from container.system.host_machine import gpu_count
from estimators.backends import local
from estimators.backends.docker import containers, links, ownership
from estimators.backends.docker.engine import Engine, ImageFacts
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.images.toolkit import outdated
from estimators.job import fleets
from estimators.job.errors import PreflightWarning, UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec

#: How long what the engine said of an image holds, in seconds.
_FRESH = 5.0
#: Image -> what the engine said of it, and when.
_seen: dict[str, tuple[ImageFacts, float]] = {}


def just_seen(image: str) -> ImageFacts | None:
    """Return what :func:`check` was told of an image, if that was within the last seconds."""
    facts, when = _seen.get(image, (None, 0.0))
    return facts if time.monotonic() - when < _FRESH else None


def check(spec: TrainingJobSpec, options: RunOptions) -> list[str]:
    """See :meth:`estimators.backends.docker.provider.DockerProvider.validate`."""
    if ContainerOptions.of(options.backend_options).link_rate and (why := links.refusal()) is not None:
        raise UnsupportedError(f"backend option 'link_rate' is not available here: {why}.")
    engine = Engine()
    gpus = fleets.capabilities(spec.instance_type).needs_gpus
    if gpus and (refusal := gpu_refusal(engine.info(), gpu_count())) is not None:
        return [refusal]
    image = engine.image(containers.image_of(spec))
    _seen[containers.image_of(spec)] = (image, time.monotonic())
    labels = image.labels
    if launchers.of(spec.strategy).membership_changes:
        if not containers.runs_toolkit(spec, labels):
            raise UnsupportedError(
                f"{type(spec.strategy).__name__} needs fleetfit's toolkit, but {_without_toolkit(spec, labels)}."
            )
        if spec.resources.keep_alive_s:
            raise UnsupportedError(
                f"{type(spec.strategy).__name__} with keep_alive_period_in_seconds is not supported: the "
                "number of kept containers cannot change. Leave keep_alive_period_in_seconds out."
            )
    if options.on_undistributed == "fail" and spec.strategy is not None and containers.TOOLKIT_LABEL not in labels:
        raise UnsupportedError(
            "RunOptions(on_undistributed='fail') needs fleetfit's toolkit, which is not in image "
            f"{containers.image_of(spec)!r}. Leave on_undistributed out, or build the image on {containers.IMAGE!r}."
        )
    if local.mounted(spec) and spec.resources.keep_alive_s:
        raise UnsupportedError(
            "FastFile mode from S3 is not supported in kept containers (keep_alive_period_in_seconds): a FUSE mount "
            "cannot be added to a running container. Use input_mode='File' or 'Pipe'."
        )
    if local.mounted(spec) and os.geteuid() != 0 and not others_may_read_mounts():
        raise UnsupportedError(
            "the container engine cannot read your mounts, which FastFile mode from S3 needs. If you are not root, "
            "add the line `user_allow_other` to /etc/fuse.conf, or use input_mode='File' or 'Pipe'."
        )
    if spec.resources.keep_alive_s and not ownership.is_root(image.user):
        raise UnsupportedError(
            f"image {containers.image_of(spec)!r} runs as user {image.user!r}, but keep_alive_period_in_seconds "
            "needs an image that runs as root. Kept containers must read the jobs' records, which only the records' "
            "owner can read."
        )
    if outdated(labels):
        warnings.warn(
            f"image {containers.image_of(spec)!r} contains another version of fleetfit's toolkit than the version "
            "installed here. Run `fleetfit image build`, which takes seconds.",
            PreflightWarning,
            stacklevel=4,
        )
    if spec.resources.keep_alive_s and not containers.runs_toolkit(spec, labels):
        raise UnsupportedError(
            f"keep_alive_period_in_seconds needs fleetfit's toolkit, but {_without_toolkit(spec, labels)}, or leave "
            "keep_alive_period_in_seconds out."
        )
    return []


def _without_toolkit(spec: TrainingJobSpec, labels: Mapping[str, str]) -> str:
    """Return why our toolkit does not run in a job's containers, and the remedy."""
    if containers.TOOLKIT_LABEL in labels:
        return "the job starts a program of its own: leave container_entry_point and container_arguments out"
    image = containers.image_of(spec)
    return f"image {image!r} does not contain the toolkit: build the image on {containers.IMAGE!r}"


def others_may_read_mounts(settings: Path = Path("/etc/fuse.conf")) -> bool:
    """Return whether users may let others read what they mount by FUSE; see fusermount3(1)."""
    try:
        lines = settings.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def gpu_refusal(info: Mapping[str, Any], gpus: int) -> str | None:
    """Return why containers cannot have GPUs here; None when they can.

    Args:
        info: What the engine says of itself (``docker info``).
        gpus: How many devices the machine's driver shows.
    """
    if not gpus:
        return "no NVIDIA GPU was found on this machine. Use 'local', which runs the same containers without a GPU."
    runtimes = set(info.get("Runtimes") or {})
    cdi = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or [] if isinstance(device, dict)]
    if "nvidia" in runtimes or any(name.startswith("nvidia.com/gpu") for name in cdi):
        return None
    return (
        f"the container engine has no GPU runtime (its runtimes: {', '.join(sorted(runtimes)) or 'none'}). Install "
        "the NVIDIA Container Toolkit and restart the engine."
    )
