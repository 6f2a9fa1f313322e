"""A host's file tree under the record, as the local backends write it before the host starts."""

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
    """Write a host's file tree: folders, configuration files, and the link to the checkpoints.

    Raises:
        OSError: it cannot be written.
    """
    tree = record.tree(host)
    for directory in (tree.config, tree.data, tree.model, tree.output_data):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, text in config.host_config(spec, host, facts).files(tree).items():
        Path(path).write_text(text, encoding="utf-8")
    if is_s3(spec.submit_directory or "") and record.source_dir.is_dir() and not tree.code.exists():
        # The archive was unpacked into the record before the job was started; with its code there, a host does not
        # look for it in S3.
        shutil.copytree(record.source_dir, tree.code, symlinks=True)
    target = checkpoints(record, spec)
    target.mkdir(parents=True, exist_ok=True)  # also where an earlier attempt has removed it
    if not tree.checkpoints.is_symlink():
        tree.checkpoints.symlink_to(target)


def clear_tree(record: JobRecord, host: str) -> None:
    """Remove what an earlier attempt left, as on SageMaker, where a restarted job has a new machine.

    What stays: the checkpoints, the code, and links to inputs.

    Raises:
        OSError: it cannot be removed.
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
    """Remove the hosts' copies of their channels: a record does not keep those bytes. Links stay."""
    for channel in local.filed(spec):
        for host in record.path.glob("hosts/*"):  # also hosts that have left the job
            place = record.tree(host.name).channel(channel)
            if not place.is_symlink():
                remove_tree(place, ignore_errors=True)


def write_mounted_tree(
    record: JobRecord, spec: TrainingJobSpec, host: str, facts: config.BackendFacts, *, links: bool = False
) -> None:
    """Write a host's file tree for a container that has it as ``/opt/ml``.

    Nothing in it leads out of it, unless ``links`` says that the container sees the same paths as this machine.

    An image may run as any user, so everything in the tree is for everybody; the record around it is the user's only.

    Raises:
        OSError: it cannot be written.
    """
    tree = record.tree(host)
    saved = checkpoints(record, spec)
    saved.mkdir(parents=True, exist_ok=True)
    tree.base.mkdir(parents=True, exist_ok=True)
    if links and not tree.checkpoints.is_symlink():
        tree.checkpoints.symlink_to(saved)
    directories = (*tree.directories(), *((tree.base / "pipe_state",) if local.has_pipes(spec) else ()))
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    for directory in (tree.base, tree.input, tree.output, *directories, record.checkpoints_dir):
        # Not what a link leads to: that is the user's own folder.
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
    """What the caller alone may read is for the container's user too."""
    for place, _, names in os.walk(folder):
        os.chmod(place, 0o777)
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode | 0o444 | (0o111 if mode & 0o100 else 0))


def checkpoints(record: JobRecord, spec: TrainingJobSpec) -> Path:
    """The folder of a job's checkpoints: one for all hosts, as if synchronised with one S3 prefix."""
    return local.checkpoint_dir(spec) or record.checkpoints_dir
