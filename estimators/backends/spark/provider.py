"""Hosts on Spark's executors: each task of a barrier stage of the caller's session holds a host's place."""

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

#: Tasks may ask for whole executors on all cluster managers from 4.0 on.
_PYSPARK = EnginePackage("PySpark", "pyspark", (4, 0), extra="spark")


class SparkOptions(ArrivingOptions):
    """Hold the ``RunOptions(backend_options={…})``."""

    instance_type: ClassVar[str] = "spark"


class SparkProvider(ArrivingProvider):
    """Provide hosts on Spark's executors."""

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
        """Refuse wrong options, an environment without PySpark, and a process without a usable session."""
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
        """Describe where the job would run."""
        stage = "tasks" if isinstance(spec.strategy, Elastic) else "a barrier stage of tasks"
        note = f"Spark: {stage}, {spec.instance_count} executors of this process's session"
        return cls.placement(spec, SparkOptions.of(options.backend_options), note)

    @classmethod
    def portable(cls, spec: TrainingJobSpec, options: RunOptions) -> dict[str, Any]:
        """Refuse dispatchers."""
        raise UnsupportedError("A dispatcher cannot reach this process's Spark session. Leave dispatcher out.")

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return where the supervisor finds the caller's session."""
        return session.found()

    def connecting(self) -> dict[str, Any]:
        """Return Spark's own arguments of ``connect``: where the caller's session is."""
        return {"session": dict(self.job.found)}

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return Spark's own arguments of ``acquire``."""
        return {"together": not self.elastic}

    async def started(self, host: ExpectedHost) -> str:
        """Wait until all hosts of the stage have connected: their placement is known then."""
        machines = [(await host.until(other.arrival)).address for other in host.group]
        remedy = "set spark.executor.cores so that each machine has one executor, or use as many hosts as machines"
        self.refuse_mixed(machines, remedy)
        return machines[host.group.index(host)]

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """End the stage's other hosts, as Spark does, so that the next attempt does not reuse them."""
        for other in host.group:
            if other.remote is not None and not other.lost:
                other.remote.lose(f"Spark ended the barrier stage of all hosts because {host.name} was lost: {reason}")

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether PySpark is installed."""
        return [_PYSPARK.finding("spark", "jobs on Spark's executors")]
