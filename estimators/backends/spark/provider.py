"""Provide hosts on Spark's executors. For each host, a task in the caller's Spark session occupies an executor.

The tasks of hosts that are requested together form a barrier stage: Spark starts and ends these tasks together. In an
elastic job, each host's task is a Spark job of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from estimators.backends.engine import EnginePackage
from estimators.backends.hosts.arriving import ArrivingOptions, ArrivingProvider, ExpectedHost
from estimators.backends.hosts.provider import Finding, Placement, ProvidedJob
from estimators.backends.spark import session
from estimators.job import fleets
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.request import RunOptions, TrainingJobSpec

#: Version 4.0 is the first in which tasks can request whole executors on all cluster managers.
_PYSPARK = EnginePackage("PySpark", "pyspark", (4, 0), extra="spark")


class SparkOptions(ArrivingOptions):
    """The ``RunOptions(backend_options={…})`` for jobs on Spark."""

    instance_type: ClassVar[str] = "spark"


class SparkProvider(ArrivingProvider):
    """A provider of hosts on Spark's executors."""

    name: ClassVar[str] = fleets.SPARK
    capabilities = fleets.FLEETS[fleets.SPARK].capabilities
    title = "Spark"
    program = Path(__file__).with_name("driver.py")
    logged = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ \w+: ", re.MULTILINE)  # date, time, level, class
    why_s = 0.5

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job, SparkOptions.of(job.options.backend_options))

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Return errors if an option is invalid, or if this process has no PySpark or no usable Spark session."""
        try:
            SparkOptions.of(options.backend_options)
        except ConfigurationError as error:
            return [str(error)]
        if isinstance(spec.strategy, Elastic) and spec.strategy.discovery is not None:
            return ["Spark chooses the executors by itself. Leave discovery= out."]
        reason = _PYSPARK.refusal() or session.refusal()
        return [reason] if reason is not None else []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Return the placement of the job's hosts on Spark's executors."""
        stage = "tasks" if isinstance(spec.strategy, Elastic) else "a barrier stage of tasks"
        note = f"Spark: {stage}, {spec.instance_count} executors of this process's session"
        return cls.described(spec, SparkOptions.of(options.backend_options), note)

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: RunOptions) -> dict[str, Any]:
        """Refuse to move the job to a dispatcher, because a dispatcher cannot reach the caller's Spark session.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("A dispatcher cannot reach this process's Spark session. Leave dispatcher out.")

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return the values with which the supervisor can find the caller's Spark session. Return None without a
        session.
        """
        return session.found()

    def connecting(self) -> dict[str, Any]:
        """Return those arguments of the request ``connect`` that only Spark's driver program has. These arguments
        identify the caller's session.
        """
        return {"session": dict(self.job.found)}

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return those arguments of the request ``acquire`` that only Spark's driver program has."""
        return {"together": not self.elastic}

    async def started(self, host: ExpectedHost) -> str:
        """Wait until all hosts of the stage have connected, and return the host's address.

        The machines of all hosts are known only then.
        """
        machines = [(await host.until(other.arrival)).address for other in host.group]
        remedy = "set spark.executor.cores so that each machine has one executor, or use as many hosts as machines"
        self.refuse_mixed(machines, remedy)
        return machines[host.group.index(host)]

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Report all other hosts of the lost host's stage as lost, too.

        Spark ends all tasks of the stage, so the next attempt must not reuse these hosts.
        """
        for other in host.group:
            if other.remote is not None and not other.lost:
                other.remote.lose(f"Spark ended the barrier stage of all hosts because {host.name} was lost: {reason}")

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding about PySpark for ``fleetfit doctor``."""
        return [_PYSPARK.finding("spark", "jobs on Spark's executors")]
