"""Find the model, the other outputs and the checkpoints of a job from the job's record."""

from __future__ import annotations

from pathlib import Path

from container.system.locations import local_path
from estimators.records.record import JobRecord


def model_data(record: JobRecord) -> str | None:
    """Return the location of the model (``model.tar.gz``). Return None if the job has no model."""
    artifacts = record.read_status().get("ModelArtifacts") or {}
    if artifacts.get("S3ModelArtifacts"):
        return str(artifacts["S3ModelArtifacts"])
    model = record.output_dir / "model.tar.gz"
    return str(model) if model.is_file() else None


def output_data(record: JobRecord) -> str | None:
    """Return the location of the archive with the outputs besides the model (``output.tar.gz``).

    Return None if the archive does not exist. A location on S3 is returned without this check.
    """
    model = model_data(record)
    if model is not None and "://" in model and not model.startswith("file://"):
        return f"{model.rpartition('/')[0]}/output.tar.gz"
    output = (record.read_request().get("OutputDataConfig") or {}).get("S3OutputPath") or ""
    name = record.name
    if output.startswith("s3://"):
        return f"{output.rstrip('/')}/{name}/output/output.tar.gz"
    folder = local_path(output) if output else None
    for place in (record.output_dir, *([folder / name / "output"] if folder is not None else ())):
        if (place / "output.tar.gz").is_file():
            return str(place / "output.tar.gz")
    return None


def checkpoints(record: JobRecord) -> str:
    """Return the location of the checkpoints. The location is the job's ``checkpoint_s3_uri``, or a folder of the job's
    record.
    """
    uri = (record.read_request().get("CheckpointConfig") or {}).get("S3Uri")
    return str(uri) if uri else str(record.checkpoints_dir)


def has_checkpoints(record: JobRecord) -> bool:
    """Return whether the job may have checkpoints.

    If the location is on S3, it is not checked, and the result is True.
    """
    place = checkpoints(record)
    if "://" in place:
        return True
    folder = Path(place)
    return folder.is_dir() and any(folder.iterdir())
