"""Provide a job's metrics through the interface of the SageMaker SDK's class ``TrainingJobAnalytics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from container.contract.names import suggests_arguments

if TYPE_CHECKING:
    import pandas

    from estimators.client.training_job import TrainingJob


@suggests_arguments
class TrainingJobAnalytics:
    """The metrics of a job. The class has the same methods as the SageMaker SDK's class ``TrainingJobAnalytics``.

    Args:
        job: The job.
    """

    name = "TrainingJobAnalytics"

    def __init__(self, job: TrainingJob) -> None:
        self._job = job

    def __repr__(self) -> str:
        return f"<TrainingJobAnalytics of {self._job.name!r}>"

    def dataframe(self, force_refresh: bool = False) -> pandas.DataFrame:
        """Return a table with one row for each value. The columns are ``timestamp``, ``metric_name`` and ``value``.

        The timestamp is the number of seconds since the first value. The table contains the values of all ranks, but
        not the ranks. ``job.metrics()`` returns a table with the ranks.

        Args:
            force_refresh: An argument of the SageMaker SDK that has no effect here, because nothing is cached.
        """
        del force_refresh
        metrics = self._job.metrics()
        frame = metrics[["elapsed_s", "name", "value"]].rename(
            columns={"elapsed_s": "timestamp", "name": "metric_name"}
        )
        if len(frame):
            frame["timestamp"] -= frame["timestamp"].min()
        return frame.reset_index(drop=True)

    def clear_cache(self) -> None:
        """Do nothing, because nothing is cached."""
