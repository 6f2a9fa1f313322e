"""Represent the plan of a tuning job as data. ``HyperparameterTuner.plan()`` returns the plan."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from estimators.client.cluster_plan import ClusterPlan
from estimators.job.fleets import capabilities
from estimators.tuning.config import TuningSpec


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """The plan of a tuning job that has not been started. ``print(plan)`` shows the plan as text. A notebook shows it
    as HTML.

    Attributes:
        spec: The spec of the search.
        request: The CreateHyperParameterTuningJob request. Values whose names look secret are replaced by ``***``.
        trial: The plan of a trial, without the tuned hyperparameters.
    """

    spec: TuningSpec
    request: Mapping[str, Any]
    trial: ClusterPlan

    def text(self) -> str:
        """Return the plan as text.

        The text describes the search and the processes of a trial. For SageMaker, the text contains the request instead
        of the processes.
        """
        config = self.request["HyperParameterTuningJobConfig"]
        objective = config.get("HyperParameterTuningJobObjective") or {}
        fleet = self.spec.fleet
        trials = f"{self.spec.limit} trials, {self.spec.parallel} at once"
        if fleet is not None:
            trials = f"as many trials as {fleet.hosts} hosts have room for until the deadline"
        lines = [f"{self.spec.name}: strategy {self.spec.strategy}, {trials}"]
        if objective:
            lines.append(f"objective: {objective['Type'].lower()} {objective['MetricName']}")
        for kind, found in config["ParameterRanges"].items():
            for one in found:
                ends = one.get("Values") or f"{one['MinValue']} to {one['MaxValue']}"
                values = ", ".join(ends) if isinstance(ends, list) else ends
                lines.append(f"{one['Name']}: {values} ({kind.removesuffix('ParameterRanges').lower()})")
        if capabilities(self.trial.spec.instance_type).managed:
            lines += [f"warning: {warning}" for warning in self.trial.warnings]
            asked = json.dumps(self.request, indent=2, ensure_ascii=False)
            return "\n".join([*lines, "", "request (CreateHyperParameterTuningJob):", asked])
        return "\n".join([*lines, "", "each trial:", self.trial.text()])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"
