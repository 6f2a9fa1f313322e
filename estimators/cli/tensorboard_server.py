"""Run TensorBoard on the event files of jobs. Each job is shown under the job's name."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from container.system import folders, processes
from estimators.cli import Exit, console
from estimators.job.errors import UnsupportedError
from estimators.records.record import JobRecord, job_names

#: Interval between searches for new jobs, in seconds.
_REFRESH_SECONDS = 5.0
#: Folders in a host's /opt/ml that are searched for event files.
_PLACES = ("output/tensorboard", "output/data", "model", "checkpoints")
_PATTERN = "events.out.tfevents.*"


def event_folders(jobs: Sequence[str] = ()) -> dict[str, Path]:
    """Return the folders that contain event files, as a mapping from labels to folders.

    The label of the first host's ``output/tensorboard`` is the job's name. The label of any other folder consists of
    the names of the job, the host and the folder.

    Args:
        jobs: The names of jobs. With an empty sequence, all jobs are searched.

    Raises:
        JobNotFoundError: a named job does not exist.
    """
    found: dict[str, Path] = {}
    for name in jobs or job_names():
        try:
            record = JobRecord.open(name)
        except LookupError:
            if jobs:
                raise
            continue  # removed meanwhile
        for host in record.hosts:
            for place in _PLACES:
                folder = record.tree(host).base / place
                if folder.is_dir() and next(folder.rglob(_PATTERN), None) is not None:
                    label = name if place == _PLACES[0] and host == "algo-1" else f"{name}-{host}-{Path(place).name}"
                    found[label] = folder
    return found


def show(jobs: Sequence[str]) -> int:
    """Print the folders that contain event files."""
    for name, folder in event_folders(jobs).items():
        console.out(f"{name}\t{folder}")
    return Exit.OK


def serve(jobs: Sequence[str], *, port: int = 0) -> int:
    """Run TensorBoard on the loopback address of this machine until TensorBoard exits or an interrupt arrives.

    Args:
        jobs: The names of the jobs to show. With an empty sequence, all jobs are shown.
        port: The port. 0 means a free port.

    Returns:
        The exit status of TensorBoard.

    Raises:
        UnsupportedError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UnsupportedError("TensorBoard is not installed here: `fleetfit install tensorboard`.")
    with folders.temporary("tensorboard") as links:
        if not _link(links, jobs):
            console.say("no job has event files yet; TensorBoard shows new files as they appear.")
        argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(links), "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--reload_multifile", "true"]
        child = subprocess.Popen(
            argv, preexec_fn=functools.partial(processes.set_death_signal, signal.SIGTERM, os.getpid())
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(_REFRESH_SECONDS)
                _link(links, jobs)
        finally:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            if child.poll() is None:
                child.kill()
                child.wait()


def _link(links: Path, jobs: Sequence[str]) -> int:
    """Create a link to each folder that contains event files, and remove obsolete links.

    Return the number of folders.
    """
    found = event_folders(jobs)
    for name, folder in found.items():
        link = links / name
        if not link.is_symlink():
            link.symlink_to(folder)
    for link in links.iterdir():
        if link.name not in found:
            link.unlink()
    return len(found)
