"""Write a host's file tree into the job's record before the host starts, for the local backends.

A file tree has the folders and files that a SageMaker container has in ``/opt/ml``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from container.system.locations import is_s3
from container.system.removing import remove_tree
from container.toolkit.code.code import unshare
from estimators.backends import config, local
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord


def write_tree(
    record: JobRecord, spec: TrainingJobSpec, host: str, facts: config.BackendFacts = config.PROCESSES
) -> None:
    """Write a host's file tree: its folders, its configuration files, and the link to the checkpoints.

    Raises:
        OSError: the tree cannot be written.
    """
    tree = record.tree(host)
    for directory in (tree.config, tree.data, tree.model, tree.output_data):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, text in config.host_config(spec, host, facts).files(tree).items():
        Path(path).write_text(text, encoding="utf-8")
    if is_s3(spec.submit_directory or "") and record.source_dir.is_dir() and not tree.code.exists():
        # The archive was unpacked into the record before the job was started. A host that has the code does not
        # download it from S3.
        shutil.copytree(record.source_dir, tree.code, symlinks=True)
    target = checkpoints(record, spec)
    target.mkdir(parents=True, exist_ok=True)  # the script may have deleted the folder in an earlier attempt
    if not tree.checkpoints.is_symlink():
        tree.checkpoints.symlink_to(target)


def clear_tree(record: JobRecord, host: str) -> None:
    """Remove the files that an earlier attempt has left in a host's file tree.

    On SageMaker, a restarted job gets a new machine without such files. The checkpoints, the code, and links to inputs
    are kept.

    Raises:
        OSError: a file cannot be removed.
    """
    tree = record.tree(host)
    for folder in (tree.model, tree.output):
        if folder.is_dir() and not folder.is_symlink():
            remove_tree(folder)
    for entry in list(os.scandir(tree.data)) if tree.data.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        elif not entry.is_symlink():
            os.unlink(entry.path)


def remove_inputs(record: JobRecord, spec: TrainingJobSpec) -> None:
    """Remove the hosts' copies of their input channels, because the record must not keep the copies. Links to inputs
    are kept.
    """
    for channel in local.filed(spec):
        for host in record.path.glob("hosts/*"):  # also hosts that have left the job
            place = record.tree(host.name).channel(channel)
            if not place.is_symlink():
                remove_tree(place, ignore_errors=True)


def write_mounted_tree(
    record: JobRecord, spec: TrainingJobSpec, host: str, facts: config.BackendFacts, *, links: bool = False
) -> None:
    """Write a host's file tree for a container that mounts the tree as ``/opt/ml``.

    An image may run as any user. All users may therefore read and write the tree, but only the caller may open the
    record that contains the tree.

    Args:
        record: The job's record.
        spec: The job.
        host: The name of the host.
        facts: The values in the host's configuration that depend on the backend.
        links: Whether the container has the same paths as this machine, so that links may lead out of the tree.

    Raises:
        OSError: the tree cannot be written.
    """
    tree = record.tree(host)
    saved = checkpoints(record, spec)
    saved.mkdir(parents=True, exist_ok=True)
    tree.base.mkdir(parents=True, exist_ok=True)
    if links and not tree.checkpoints.is_symlink():
        tree.checkpoints.symlink_to(saved)
    directories = (*tree.directories(), *((tree.base / "pipe_state",) if local.piped(spec) else ()))
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    for directory in (tree.base, tree.input, tree.output, *directories, record.checkpoints_dir):
        # Links are skipped: their targets are the user's own folders.
        if directory.is_dir() and not directory.is_symlink() and directory.stat().st_uid == os.geteuid():
            directory.chmod(0o777)
    for path, text in config.host_config(spec, host, facts).files(tree).items():
        Path(path).write_text(text, encoding="utf-8")
        os.chmod(path, 0o644)
    if record.source_dir.is_dir():
        empty = not any(tree.code.iterdir())
        if empty:
            shutil.copytree(record.source_dir, tree.code, symlinks=True, dirs_exist_ok=True)
        if empty or unshare(tree.code):
            _for_everybody(tree.code)


def _for_everybody(folder: Path) -> None:
    """Make all files below a folder readable, and all its folders readable and writable, for all users.

    The user of the container needs these permissions.
    """
    for place, _, names in os.walk(folder):
        os.chmod(place, 0o777)
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode | 0o444 | (0o111 if mode & 0o100 else 0))


def checkpoints(record: JobRecord, spec: TrainingJobSpec) -> Path:
    """Return the folder of a job's checkpoints on this machine.

    All hosts share the folder. On SageMaker, all hosts synchronise their checkpoints with one S3 prefix instead.
    """
    return local.checkpoint_dir(spec) or record.checkpoints_dir
