"""Helpers of the tests that run real jobs: scripts on this machine, without a distribution strategy."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from estimators.client.launch import launch
from estimators.client.source import resolve
from estimators.client.training_job import TrainingJob
from estimators.job.request import (
    Algorithm,
    JobOptions,
    MetricDefinition,
    OutputConfig,
    Resources,
    StoppingCondition,
    TrainingJobSpec,
)
from estimators.records.record import jobs_folder


def start(
    script: str,
    folder: Path,
    *,
    name: str = "job-1",
    attached: bool = True,
    hosts: int = 1,
    environment: dict[str, str] | None = None,
    metrics: dict[str, str] | None = None,
    **options: Any,
) -> TrainingJob:
    """Start a job that runs ``script``; its record is under ``$FLEETFIT_HOME``."""
    code = folder / f"code-{name}"
    code.mkdir(parents=True, exist_ok=True)
    (code / "train.py").write_text(textwrap.dedent(script))
    source = resolve("train.py", str(code))
    definitions = tuple(MetricDefinition(name=key, regex=regex) for key, regex in (metrics or {}).items())
    spec = TrainingJobSpec(
        name=name,
        role="arn:aws:iam::000000000000:role/local",
        algorithm=Algorithm(image="local", metric_definitions=definitions),
        hyperparameters=codec.encode(
            {
                codec.PROGRAM: source.program,
                codec.SUBMIT_DIRECTORY: f"file://{jobs_folder() / name / 'source'}",
                "epochs": 3,
                "api-token": "sesame-sesame",
            }
        ),
        output=OutputConfig(path=f"file://{folder / 'out'}"),
        resources=Resources(instance_type="local_process", instance_count=hosts, volume_size_gb=1),
        stopping=StoppingCondition(max_run_s=3600),
        environment=environment or {},
    )
    return TrainingJob(*launch(spec, JobOptions(**options), attached=attached, source=source))


def processes_of(job: str) -> list[int]:
    """Living processes that carry the job's mark, of this test's jobs."""
    marks = {f"FLEETFIT_JOB={job}".encode(), f"FLEETFIT_HOME={os.environ['FLEETFIT_HOME']}".encode()}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marks <= set(variables):
                found.append(int(entry))
    return found
