"""What is written of a job when everything of it has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from container.contract.failures import Failure
from estimators.backends import local
from estimators.jobs.record import JobRecord
from estimators.spec import TrainingJobSpec


def archive_of(spec: TrainingJobSpec) -> str | None:
    """Where the model is, if it was packed."""
    folder = local.output_dir(spec)
    return str(folder / "model.tar.gz") if folder is not None and (folder / "model.tar.gz").exists() else None


def leave_reason(record: JobRecord, hosts: Sequence[str], failure: Failure) -> None:
    """Have each host's ``output/failure`` say the reason, also where its toolkit could not write it any more."""
    for host in hosts:
        tree = record.tree(host)
        with contextlib.suppress(OSError):
            if tree.output.is_dir() and not tree.failure_file.exists():
                tree.failure_file.write_text(failure.reason(), encoding="utf-8")


def tidy() -> None:
    """Remove the temporary folders of jobs that were killed with everything of theirs, which nobody else does."""
    from estimators import clean

    with contextlib.suppress(Exception):  # another job's leftovers are not this one's failure
        clean.remove(clean.leftover_folders())
