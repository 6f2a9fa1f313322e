"""What ``fit()`` checks on this machine before a job is started here: everything that depends on files."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.names import nearest
from estimators.backends.local import local_path
from estimators.errors import ConfigurationError, UnsupportedError
from estimators.spec import Channel, TrainingJobSpec

_CHECKPOINTS = f"{DEFAULT_BASE_DIR}/checkpoints"


def check_local(spec: TrainingJobSpec) -> None:
    """Check a job that will run on this machine.

    Raises:
        ConfigurationError: a channel's data does not exist or cannot be read, or an output cannot be written.
        UnsupportedError: something is on S3, or a path that processes of one machine cannot have.
    """
    for channel in spec.inputs:
        _check_channel(channel)
    _check_writable("output_path", spec.output.path)
    if spec.checkpoint is not None:
        _check_writable("checkpoint_s3_uri", spec.checkpoint.uri)
        path = spec.checkpoint.local_path
        if path is not None and path.rstrip("/") != _CHECKPOINTS:
            raise UnsupportedError(
                f"checkpoint_local_path={path!r} cannot be had with instance_type={spec.instance_type!r}: processes of "
                f"one machine share its paths. Leave it out, and let the script write to os.environ"
                f"['SM_CHECKPOINT_DIR'], which is {_CHECKPOINTS!r} on SageMaker."
            )


def version_warnings(framework_version: str | None, py_version: str | None) -> list[str]:
    """Warnings for versions that were asked for and are not what runs on this machine."""
    warnings = []
    if framework_version is not None:
        installed = tensorflow_version()
        if installed is not None and not _matches(framework_version, installed):
            warnings.append(
                f"framework_version={framework_version!r} was asked for, and TensorFlow {installed} runs: "
                "local_process takes what this Python has."
            )
    if py_version is not None:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        wanted = py_version.removeprefix("py")
        wanted = f"{wanted[0]}.{wanted[1:]}" if wanted.isdigit() and len(wanted) > 1 else wanted
        if not _matches(wanted, running):
            warnings.append(
                f"py_version={py_version!r} was asked for, and Python {running} runs: local_process takes this one."
            )
    return warnings


def tensorflow_version() -> str | None:
    """The installed TensorFlow's version without importing it; None when there is none."""
    for folder in sys.path:
        if not folder.endswith(("site-packages", "dist-packages")):
            continue
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.startswith("tensorflow") and name.endswith(".dist-info"):
                distribution, _, version = name[: -len(".dist-info")].partition("-")
                if distribution in ("tensorflow", "tensorflow_cpu"):
                    return version
    return None


def _matches(wanted: str, running: str) -> bool:
    """Whether ``2.21`` means ``2.21.0``."""
    parts = wanted.split(".")
    return running.split(".")[: len(parts)] == parts


def _check_channel(channel: Channel) -> None:
    path = local_path(channel.source.s3.uri) if channel.source.s3 is not None else None
    if path is None:
        return  # the backend says what it thinks of it
    if not path.exists():
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} does not exist.{_hint(path)}")
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} cannot be read: permission denied.")
    if not path.is_dir() and not path.is_file():
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} is neither a folder nor a file.")


def _hint(path: Path) -> str:
    folder = path.parent
    while not folder.exists():
        folder, path = folder.parent, folder
    try:
        guess = nearest(path.name, sorted(os.listdir(folder)))
    except OSError:
        guess = None
    if guess is not None:
        return f" Did you mean {str(folder / guess)!r}?"
    return f" {str(folder)!r} exists." if folder != path.parent else ""


def _check_writable(argument: str, uri: str) -> None:
    path = local_path(uri)
    if path is None:
        raise UnsupportedError(
            f"{argument}={uri!r}: S3 is not available to local jobs in this version; give a path or a file:// URI."
        )
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigurationError(f"{argument}={uri!r} cannot be written: {str(folder)!r} is not a folder.")
    error = _write_error(folder)
    if error is not None:
        raise ConfigurationError(f"{argument}={uri!r} cannot be written: {str(folder)!r}: {error}.")


def _write_error(folder: Path) -> str | None:
    """Why no file can be made in a folder, or None. Leaves nothing behind."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return error.strerror
    probe = folder / f".fleetfit-{os.getpid()}"  # this file system has no nameless files
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as error:
        return error.strerror
    return None
