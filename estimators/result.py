"""What came of a job, as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a job.

    Attributes:
        job_name: The job's name.
        status: ``Completed``, ``Failed``, ``Stopped`` …
        secondary_status: In more detail: ``MaxRuntimeExceeded`` …
        seconds: From the job's creation to its end, or None while it runs.
        phases: Seconds per phase, None where unknown.
        metrics: The last value of each metric.
        model_data: Where the model is, or None.
        checkpoints: Where the checkpoints are, or None when there are none.
        logs: The folder of the hosts' logs.
        failure_reason: Why it failed, or None.
    """

    job_name: str
    status: str
    secondary_status: str
    seconds: float | None
    phases: Mapping[str, float | None]
    metrics: Mapping[str, float]
    model_data: str | None
    checkpoints: str | None
    logs: str
    failure_reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return dataclasses.asdict(self)
