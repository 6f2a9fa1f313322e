"""Find the reasons why a job cannot run in containers, before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

from container import launchers
from container.system.host_machine import gpu_count
from estimators.backends import local
from estimators.backends.docker import links, ownership
from estimators.backends.docker.containers import image_of, runs_toolkit
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.options import ContainerOptions
from estimators.backends.images.engine import ImageFacts
from estimators.backends.images.toolkit import IMAGE, TOOLKIT_LABEL, outdated
from estimators.job import fleets
from estimators.job.errors import PreflightWarning, warn
from estimators.job.request import RunOptions, TrainingJobSpec


def check(spec: TrainingJobSpec, options: RunOptions) -> list[str]:
    """Return the reasons why a job cannot run in containers on this machine.

    Raises:
        EngineError: the container engine cannot be reached, or the image does not exist.
    """
    if ContainerOptions.of(options.backend_options).link_rate and (why := links.refusal()) is not None:
        return [f"backend option 'link_rate' is not available here: {why}."]
    engine = Engine()
    # A missing GPU runtime is not detected here. In this case, the engine refuses to start the containers.
    if fleets.capabilities(spec.instance_type).needs_gpus and not gpu_count():
        return ["no NVIDIA GPU was found on this machine. Use 'local', which runs the same containers without a GPU."]
    image = engine.image(image_of(spec))
    if outdated(image.labels):
        warn(
            f"image {image_of(spec)!r} contains another version of fleetfit's toolkit than the version "
            "installed here. Run `fleetfit image build`, which takes seconds.",
            PreflightWarning,
        )
    mountable = os.geteuid() == 0 or not local.mounted(spec) or others_may_read_mounts()
    return refusals(spec, options, image, mountable=mountable)


def refusals(spec: TrainingJobSpec, options: RunOptions, image: ImageFacts, *, mountable: bool = True) -> list[str]:
    """Return the reasons why an image cannot run a job.

    Args:
        spec: The job.
        options: The run options of the job.
        image: The container engine's description of the image.
        mountable: Whether the container engine can read the FUSE mounts of this user.
    """
    name, strategy = image_of(spec), type(spec.strategy).__name__
    labelled, ours, kept = TOOLKIT_LABEL in image.labels, runs_toolkit(spec, image.labels), spec.resources.keep_alive_s
    elastic, mounted = launchers.of(spec.strategy).membership_changes, local.mounted(spec)
    without = f"image {name!r} does not contain the toolkit: build the image on {IMAGE!r}"
    if labelled:
        without = "the job starts a program of its own: leave container_entry_point and container_arguments out"
    reasons = (
        (elastic and not ours, f"{strategy} needs fleetfit's toolkit, but {without}."),
        (
            elastic and kept,
            f"{strategy} with keep_alive_period_in_seconds is not supported: the number of kept containers cannot "
            "change. Leave keep_alive_period_in_seconds out.",
        ),
        (
            options.on_undistributed == "fail" and spec.strategy is not None and not labelled,
            f"RunOptions(on_undistributed='fail') needs fleetfit's toolkit, which is not in image {name!r}. Leave "
            f"on_undistributed out, or build the image on {IMAGE!r}.",
        ),
        (
            mounted and kept,
            "FastFile mode from S3 is not supported in kept containers (keep_alive_period_in_seconds): a FUSE mount "
            "cannot be added to a running container. Use input_mode='File' or 'Pipe'.",
        ),
        (
            mounted and not mountable,
            "the container engine cannot read your mounts, which FastFile mode from S3 needs. If you are not root, "
            "add the line `user_allow_other` to /etc/fuse.conf, or use input_mode='File' or 'Pipe'.",
        ),
        (
            kept and not ownership.is_root(image.user),
            f"image {name!r} runs as user {image.user!r}, but keep_alive_period_in_seconds needs an image that runs "
            "as root. Kept containers must read the jobs' records, which only the records' owner can read.",
        ),
        (
            kept and not ours,
            f"keep_alive_period_in_seconds needs fleetfit's toolkit, but {without}, or leave "
            "keep_alive_period_in_seconds out.",
        ),
    )
    return [reason for applies, reason in reasons if applies]


def others_may_read_mounts(settings: Path = Path("/etc/fuse.conf")) -> bool:
    """Return whether this machine lets a user share a FUSE mount with root and other users.

    See ``user_allow_other`` in fusermount3(1).
    """
    try:
        lines = settings.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
