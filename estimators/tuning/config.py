"""Define the configuration of a tuning job: the classes of the SageMaker SDK 2.x, and the tuning job's spec as one
value.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown, suggests_arguments
from container.contract.rules import option
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.tuning import ranges as tuning_ranges
from estimators.tuning.fleet import SharedFleetConfig

#: The strategies of SageMaker, and all strategies of fleetfit.
SAGEMAKER_STRATEGIES = ("Bayesian", "Random", "Hyperband", "Grid")
STRATEGIES = (*SAGEMAKER_STRATEGIES, "ASHA", "PBT")
OBJECTIVE_TYPES = ("Maximize", "Minimize")
EARLY_STOPPING_TYPES = ("Off", "Auto")

#: The largest number of points that a grid may have.
_MOST_POINTS = 10_000


class WarmStartTypes(enum.Enum):
    """The ways in which a tuning job can use the trials of earlier tuning jobs, with SageMaker's names."""

    IDENTICAL_DATA_AND_ALGORITHM = "IdenticalDataAndAlgorithm"
    TRANSFER_LEARNING = "TransferLearning"


@suggests_arguments
class WarmStartConfig:
    """The configuration of a tuning job that uses the trials of earlier tuning jobs.

    Args:
        warm_start_type: One of :class:`WarmStartTypes`.
        parents: The names of the earlier tuning jobs.
    """

    def __init__(self, warm_start_type: WarmStartTypes, parents: Iterable[str]) -> None:
        if warm_start_type not in list(WarmStartTypes):
            raise ConfigurationError(
                f"Invalid type: {shown(warm_start_type)}, valid warm start types are: {list(WarmStartTypes)}"
            )
        if not parents or isinstance(parents, str):
            raise ConfigurationError(f"Invalid parents: {shown(parents)}, parents should not be None/empty")
        self.type = warm_start_type
        self.parents = set(parents)

    @classmethod
    def from_job_desc(cls, warm_start_config: Mapping[str, Any] | None) -> WarmStartConfig | None:
        """Create the configuration from the ``WarmStartConfig`` of a DescribeHyperParameterTuningJob response. Return
        None if the response has none.
        """
        if not warm_start_config:
            return None
        parents = [item["HyperParameterTuningJobName"] for item in warm_start_config["ParentHyperParameterTuningJobs"]]
        return cls(WarmStartTypes(warm_start_config["WarmStartType"]), parents)

    def to_input_req(self) -> dict[str, Any]:
        """Return the configuration as the ``WarmStartConfig`` of a request."""
        return {
            "WarmStartType": self.type.value,
            "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": name} for name in sorted(self.parents)],
        }


@suggests_arguments
@dataclasses.dataclass
class HyperbandStrategyConfig:
    """The training lengths of Hyperband. The unit is one reported value of the objective, which is usually one epoch.

    Attributes:
        max_resource: The number of reported values after which a trial is complete.
        min_resource: The number of reported values before which no trial is stopped.
    """

    max_resource: int
    min_resource: int

    @classmethod
    def from_job_desc(cls, hyperband_strategy_config: Mapping[str, Any]) -> HyperbandStrategyConfig:
        """Create the configuration from the ``HyperbandStrategyConfig`` of a description of a tuning job."""
        return cls(hyperband_strategy_config["MaxResource"], hyperband_strategy_config["MinResource"])

    def to_input_req(self) -> dict[str, Any]:
        """Return the configuration as the ``HyperbandStrategyConfig`` of a request."""
        return {"MinResource": self.min_resource, "MaxResource": self.max_resource}


@suggests_arguments
@dataclasses.dataclass
class StrategyConfig:
    """The configuration of a search strategy.

    Attributes:
        hyperband_strategy_config: The configuration of Hyperband, which ASHA uses too.
    """

    hyperband_strategy_config: HyperbandStrategyConfig

    @classmethod
    def from_job_desc(cls, strategy_config: Mapping[str, Any]) -> StrategyConfig:
        """Create the configuration from the ``StrategyConfig`` of a description of a tuning job."""
        return cls(HyperbandStrategyConfig.from_job_desc(strategy_config["HyperbandStrategyConfig"]))

    def to_input_req(self) -> dict[str, Any]:
        """Return the configuration as the ``StrategyConfig`` of a request."""
        return {"HyperbandStrategyConfig": self.hyperband_strategy_config.to_input_req()}


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """The options of population-based training, for the strategy ``PBT``. SageMaker does not have this strategy.

    Attributes:
        size: The number of members of the population.
        resource: The name of the hyperparameter that sets the total length of a training. The tuner increases this
            hyperparameter with each generation.
        interval: The length of a generation, in units of ``resource``. The first generation trains up to ``interval``,
            the second generation up to twice ``interval``.
        quantile: The fraction of the members that are replaced after a generation. Each member of the worst fraction
            continues from the checkpoint of a member of the equally large best fraction.
        resample_probability: The probability that a hyperparameter of a replaced member is drawn at random from its
            range. Otherwise the hyperparameter is changed by ±20 %.
    """

    size: int = option(rules.whole(2), 4)
    resource: str = "epochs"
    interval: int = option(rules.whole(1), 1)
    quantile: float = option(rules.number(0, 0.5), 0.25)
    resample_probability: float = option(rules.number(0, 1), 0.25)

    def __post_init__(self) -> None:
        rules.check(self)
        tuning_ranges.check_name(self.resource)


@suggests_arguments
@dataclasses.dataclass
class TuningJobCompletionCriteriaConfig:
    """The criteria by which a tuning job ends before its last trial.

    Attributes:
        max_number_of_training_jobs_not_improving: The number of trials in a row without a better value after which the
            tuning job ends.
        complete_on_convergence: Whether the tuning job ends when the trials no longer improve the best value by more
            than a thousandth.
        target_objective_metric_value: The value of the objective at which the tuning job ends.
    """

    max_number_of_training_jobs_not_improving: int | None = None
    complete_on_convergence: bool | None = None
    target_objective_metric_value: float | None = None

    @classmethod
    def from_job_desc(cls, completion_criteria_config: Mapping[str, Any]) -> TuningJobCompletionCriteriaConfig:
        """Create the criteria from the ``TuningJobCompletionCriteria`` of a description of a tuning job."""
        converged = completion_criteria_config.get("ConvergenceDetected") or {}
        not_improving = completion_criteria_config.get("BestObjectiveNotImproving") or {}
        complete = converged.get("CompleteOnConvergence")
        return cls(
            not_improving.get("MaxNumberOfTrainingJobsNotImproving"),
            complete == "Enabled" if complete else None,
            completion_criteria_config.get("TargetObjectiveMetricValue"),
        )

    def to_input_req(self) -> dict[str, Any]:
        """Return the criteria as the ``TuningJobCompletionCriteria`` of a request."""
        request: dict[str, Any] = {}
        if self.max_number_of_training_jobs_not_improving is not None:
            request["BestObjectiveNotImproving"] = {
                "MaxNumberOfTrainingJobsNotImproving": self.max_number_of_training_jobs_not_improving
            }
        if self.target_objective_metric_value is not None:
            request["TargetObjectiveMetricValue"] = self.target_objective_metric_value
        if self.complete_on_convergence is not None:
            request["ConvergenceDetected"] = {
                "CompleteOnConvergence": "Enabled" if self.complete_on_convergence else "Disabled"
            }
        return request


@dataclass(frozen=True)
class Goal:
    """An objective such as ``time_to:METRIC>=VALUE``. The value of this objective is the time until the metric reaches
    ``VALUE``.

    Attributes:
        metric: The name of the metric.
        at_least: Whether the metric has to rise to the value. If False, the metric has to fall to the value.
        value: The value that the metric has to reach.
    """

    metric: str
    at_least: bool
    value: float

    @classmethod
    def parse(cls, objective: str) -> Goal | None:
        """Parse an objective. Return None if the objective is the name of a metric.

        Raises:
            ConfigurationError: the objective begins with ``time_to:`` but is not valid.
        """
        if not objective.startswith("time_to:"):
            return None
        match = re.fullmatch(r"time_to:(.+?)\s*(>=|<=)\s*(\S+)", objective)
        try:
            if match is not None and math.isfinite(value := float(match[3])):
                return cls(match[1], match[2] == ">=", value)
        except ValueError:
            pass
        raise ConfigurationError(f"objective {objective!r}: write time_to:METRIC>=VALUE or time_to:METRIC<=VALUE.")

    def reached(self, value: float) -> bool:
        """Return whether a value of the metric reaches the goal."""
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True, kw_only=True)
class TuningSpec:
    """The configuration of a tuning job, as far as the tuning job's process needs it.

    Attributes:
        name: The tuning job's name.
        objective: The name of a metric, or the text of a :class:`Goal`.
        objective_type: ``Maximize`` or ``Minimize``. For a goal, the type is always ``Minimize``.
        parameter_ranges: The request's ``ParameterRanges``.
        strategy: One of :data:`STRATEGIES`.
        max_jobs: The number of trials. None for all points of the strategy ``Grid``.
        max_parallel_jobs: The number of trials that run at once.
        max_runtime_s: The number of seconds after which the tuning job is stopped. With a shared fleet, the tuning job
            then completes. None for no limit.
        early_stopping_type: ``Auto`` to stop trials that are worse than the median of the other trials, or ``Off``.
        min_resource: For Hyperband and ASHA. The number of reported values before which no trial is stopped.
        max_resource: For Hyperband. The number of reported values of a complete training. With None, Optuna determines
            the number from the first trials.
        reduction_factor: For Hyperband and ASHA. At each stage, one in this many trials continues.
        random_seed: The seed of the search. With a seed, the search can be repeated if trials end in the same order.
        completion: The request's ``TuningJobCompletionCriteria``.
        warm_start: The request's ``WarmStartConfig``.
        population: The fields of :class:`PopulationConfig`, for the strategy PBT.
        max_failures: The number of failed trials after which the tuning job ends. With None, failures end the tuning
            job only if no trial has reported a value yet: after five failed trials, or after one trial that has
            completed without a value.
        repeats: Whether several trials may have the same hyperparameters.
        shared_fleet: The fields of :class:`SharedFleetConfig` for a shared fleet. The fleet's deadline is
            ``max_runtime_s``.
    """

    name: str
    objective: str
    objective_type: str = option(rules.one_of(*OBJECTIVE_TYPES), "Maximize")
    parameter_ranges: Mapping[str, Any]
    strategy: str = option(rules.one_of(*STRATEGIES), "Bayesian")
    max_jobs: int | None = option(rules.or_none(rules.whole(1)), 1)
    max_parallel_jobs: int = option(rules.whole(1), 1)
    max_runtime_s: int | None = option(rules.whole(1))
    early_stopping_type: str = option(rules.one_of(*EARLY_STOPPING_TYPES), "Off")
    min_resource: int = option(rules.whole(1), 1)
    max_resource: int | None = option(rules.whole(1))
    reduction_factor: int = option(rules.whole(2), 3)
    random_seed: int | None = option(rules.whole(0, (1 << 31) - 1))
    completion: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warm_start: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    population: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_failures: int | None = option(rules.whole(1))
    repeats: bool = False
    shared_fleet: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.objective, str) or not self.objective:
            raise ConfigurationError(f"objective_metric_name must be a metric's name; got {shown(self.objective)}.")
        if self.goal is not None:
            object.__setattr__(self, "objective_type", "Minimize")
            if self.early_stopping_type == "Auto" or self.strategy not in ("Bayesian", "Random", "Grid"):
                raise ConfigurationError(
                    f"objective {self.objective!r}: the tuner stops a trial when the metric reaches this goal, so "
                    "early stopping, Hyperband, ASHA and PBT are not possible. Use the strategy Bayesian, Random or "
                    "Grid."
                )
        rules.check(self, "{name}")
        if self.max_resource is not None and self.max_resource < self.min_resource:
            raise ConfigurationError(f"max_resource={self.max_resource} is less than min_resource={self.min_resource}.")
        if self.prunes and self.strategy in ("Hyperband", "ASHA") and self.early_stopping_type == "Auto":
            raise ConfigurationError(
                f"early_stopping_type='Auto' is not possible with the strategy {self.strategy}, which stops trials "
                "by itself. Use 'Off'."
            )
        found = tuning_ranges.from_request(self.parameter_ranges)
        if not found:
            raise ConfigurationError("Need to specify hyperparameter ranges or set autotune=True.")
        for name in found:
            tuning_ranges.check_name(name)
        if self.strategy == "PBT":
            self._check_population(found)
        if self.strategy == "Grid":
            self._check_grid(found)
        elif self.max_jobs is None:
            raise ConfigurationError(f"max_jobs is needed with the strategy {self.strategy}.")
        self._check_completion()
        if self.shared_fleet:
            self._check_fleet()

    @property
    def fleet(self) -> SharedFleetConfig | None:
        """Return the configuration of the fleet of hosts that the trials share.

        Return None if the trials do not share a fleet.
        """
        return SharedFleetConfig(**self.shared_fleet) if self.shared_fleet else None

    @property
    def parallel(self) -> int:
        """Return the largest number of trials that run at once.

        With a shared fleet, the default is one trial per host.
        """
        fleet = self.fleet
        return fleet.hosts if fleet is not None and self.max_parallel_jobs == 1 else self.max_parallel_jobs

    def _check_fleet(self) -> None:
        if self.max_runtime_s is None:
            raise ConfigurationError("shared_fleet needs a deadline: set max_runtime_in_seconds.")
        if self.strategy == "PBT" or self.goal is not None:
            what = "strategy PBT" if self.strategy == "PBT" else f"objective {self.objective!r}"
            raise ConfigurationError(
                f"shared_fleet is not possible with the {what}: shared_fleet assigns hosts by the last value of each "
                "trial's metric."
            )

    @property
    def goal(self) -> Goal | None:
        """Return the objective as a :class:`Goal`. Return None if the objective is a metric."""
        return Goal.parse(self.objective)

    @property
    def metric(self) -> str:
        """Return the name of the metric whose values determine the objective."""
        return self.goal.metric if self.goal is not None else self.objective

    @property
    def ranges(self) -> dict[str, tuning_ranges.ParameterRange]:
        """Return the range of each tuned hyperparameter, by name."""
        return tuning_ranges.from_request(self.parameter_ranges)

    @property
    def prunes(self) -> bool:
        """Return whether trials may be stopped before their end."""
        return self.strategy in ("Hyperband", "ASHA") or self.early_stopping_type == "Auto"

    @property
    def maximize(self) -> bool:
        """Return whether higher values are better."""
        return self.objective_type == "Maximize"

    @property
    def limit(self) -> int:
        """Return the maximum number of trials."""
        if self.strategy == "Grid":
            points = tuning_ranges.size(self.parameter_ranges) or 1
            return points if self.max_jobs is None else min(points, self.max_jobs)
        if self.strategy == "PBT":
            return (self.max_jobs or 1) // self.members.size * self.members.size
        return self.max_jobs or 1

    def points(self) -> list[dict[str, Any]]:
        """Return the points of a grid in order. Each point has a value for each hyperparameter."""
        grid = tuning_ranges.choices(self.parameter_ranges) or {}
        return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]

    def better(self, one: float, other: float) -> bool:
        """Return whether one value of the objective is better than another."""
        return one > other if self.maximize else one < other

    def _check_grid(self, found: Mapping[str, tuning_ranges.ParameterRange]) -> None:
        sizes = []
        for name, given in found.items():
            if given.__name__ == "Continuous":
                raise ConfigurationError(
                    f"strategy 'Grid': the range of {name!r} is continuous, and has no finite grid. List its values "
                    "in a CategoricalParameter."
                )
            categorical = isinstance(given, tuning_ranges.CategoricalParameter)
            sizes.append(len(given.values) if categorical else given.max_value - given.min_value + 1)  # type: ignore[attr-defined]
        if math.prod(sizes) > _MOST_POINTS:
            raise ConfigurationError(
                f"strategy 'Grid': the grid has {math.prod(sizes):,} points, but may have at most {_MOST_POINTS:,}."
            )

    def _check_population(self, found: Mapping[str, tuning_ranges.ParameterRange]) -> None:
        config = self.members
        if self.early_stopping_type == "Auto":
            raise ConfigurationError("early_stopping_type='Auto' is not possible with the strategy PBT. Use 'Off'.")
        if config.resource in found:
            raise ConfigurationError(f"strategy 'PBT' sets {config.resource!r} itself: leave its range out.")
        if self.max_jobs is not None and self.max_jobs < config.size:
            raise ConfigurationError(
                f"max_jobs={self.max_jobs} is less than the population size, {config.size}. Each generation has one "
                "trial per member, so max_jobs is generations × members."
            )

    @property
    def members(self) -> PopulationConfig:
        """Return the options of population-based training."""
        return PopulationConfig(**self.population)

    def _check_completion(self) -> None:
        wanted = TuningJobCompletionCriteriaConfig.from_job_desc(self.completion)
        if wanted.max_number_of_training_jobs_not_improving is not None:
            rules.whole(1)(
                "max_number_of_training_jobs_not_improving", wanted.max_number_of_training_jobs_not_improving
            )
        target = wanted.target_objective_metric_value
        if target is not None and (not isinstance(target, int | float) or not math.isfinite(target)):
            raise ConfigurationError(f"target_objective_metric_value must be a number; got {shown(target)}.")

    def to_config(self) -> dict[str, Any]:
        """Return the request's ``HyperParameterTuningJobConfig``.

        A strategy that SageMaker does not have is replaced by a similar strategy of SageMaker.
        """
        limits: dict[str, Any] = {"MaxParallelTrainingJobs": self.max_parallel_jobs}
        if self.max_jobs is not None:
            limits["MaxNumberOfTrainingJobs"] = self.max_jobs
        if self.max_runtime_s is not None:
            limits["MaxRuntimeInSeconds"] = self.max_runtime_s
        config: dict[str, Any] = {
            "Strategy": {"ASHA": "Hyperband", "PBT": "Random"}.get(self.strategy, self.strategy),
            "HyperParameterTuningJobObjective": {"Type": self.objective_type, "MetricName": self.objective},
            "ResourceLimits": limits,
            "ParameterRanges": dict(self.parameter_ranges),
            "TrainingJobEarlyStoppingType": self.early_stopping_type,
        }
        if self.max_resource is not None:
            config["StrategyConfig"] = {
                "HyperbandStrategyConfig": {"MinResource": self.min_resource, "MaxResource": self.max_resource}
            }
        if self.completion:
            config["TuningJobCompletionCriteria"] = dict(self.completion)
        if self.random_seed is not None:
            config["RandomSeed"] = self.random_seed
        return config

    @classmethod
    def from_config(
        cls, name: str, config: Mapping[str, Any], warm_start: Mapping[str, Any] | None = None
    ) -> TuningSpec:
        """Create the spec from a request's ``HyperParameterTuningJobConfig``.

        Args:
            name: The tuning job's name.
            config: The request's ``HyperParameterTuningJobConfig``.
            warm_start: The request's ``WarmStartConfig``.

        Raises:
            ConfigurationError: the configuration is not valid.
            UnsupportedError: the configuration has automatic ranges (autotune) or no objective.
        """
        parameter_ranges = config.get("ParameterRanges") or {}
        if parameter_ranges.get("AutoParameters"):
            raise UnsupportedError(
                "ParameterRanges.AutoParameters: fleetfit cannot choose ranges as SageMaker's autotune does. Give "
                "the ranges."
            )
        objective = config.get("HyperParameterTuningJobObjective")
        if objective is None:
            raise UnsupportedError("HyperParameterTuningJobConfig has no HyperParameterTuningJobObjective.")
        limits = config["ResourceLimits"]
        hyperband = (config.get("StrategyConfig") or {}).get("HyperbandStrategyConfig") or {}
        strategy = config["Strategy"]
        return cls(
            name=name,
            objective=objective["MetricName"],
            objective_type=objective["Type"],
            parameter_ranges=parameter_ranges,
            strategy=strategy,
            max_jobs=limits.get("MaxNumberOfTrainingJobs", None if strategy == "Grid" else 1),
            max_parallel_jobs=limits["MaxParallelTrainingJobs"],
            max_runtime_s=limits.get("MaxRuntimeInSeconds"),
            early_stopping_type=config.get("TrainingJobEarlyStoppingType") or "Off",
            min_resource=hyperband.get("MinResource") or 1,
            max_resource=hyperband.get("MaxResource"),
            random_seed=config.get("RandomSeed"),
            completion=config.get("TuningJobCompletionCriteria") or {},
            warm_start=warm_start or {},
        )
