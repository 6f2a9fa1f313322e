"""What is written of a job when everything of it has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from container.contract.failures import Failure
from container.system import removing, unused
from estimators.backends import local
from estimators.job.request import TrainingJobSpec
from estimators.records.record import JobRecord


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


def misplaced(record: JobRecord, found: Mapping[str, Sequence[str]]) -> list[str]:
    """Warnings of a job without a model whose script has saved one into its working folder.

    Args:
        record: The job's record.
        found: Host -> its models' paths, relative to the working folder.
    """
    warnings = []
    for host, paths in found.items():
        folder = record.tree(host).code
        where = [str(folder / path) if (folder / path).exists() else path for path in paths]
        warnings.append(
            f"the job has no model: {host} saved none to SM_MODEL_DIR. There is one in its working folder, which is no "
            f"output of the job: {', '.join(where)}. Save to os.environ['SM_MODEL_DIR']."
        )
    return warnings


def tidy() -> None:
    """Remove the temporary folders of jobs that were killed with everything of theirs, which nobody else does."""
    with contextlib.suppress(Exception):  # another job's leftovers are not this one's failure
        for path in unused.unused_folders():
            removing.remove_tree(path, ignore_errors=True)
