"""What a tuning job is asked for: what is refused, and the request's form."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from container.contract import hyperparameters as codec
from container.contract import rules
from estimators import MPI, Estimator
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.request import CheckpointConfig, Resources, TrainingJobSpec
from estimators.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperbandStrategyConfig,
    HyperparameterTuner,
    IntegerParameter,
    PopulationConfig,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from estimators.tuning import population, ranges, trials
from estimators.tuning.config import Goal, TuningSpec
from estimators.tuning.record import TuningRecord

RANGES = {"lr": ContinuousParameter(0.1, 1.0)}


def tuner(objective: str = "score", **changes: Any) -> HyperparameterTuner:
    values: dict[str, Any] = {"hyperparameter_ranges": RANGES, "max_jobs": 4, **changes}
    return HyperparameterTuner(Estimator(entry_point="train.py"), objective, **values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hyperparameter_ranges": {}}, "Need to specify hyperparameter ranges"),
        ({"strategy": "Bayes"}, "Bayesian"),
        ({"objective_type": "Max"}, "Maximize"),
        ({"early_stopping_type": "On"}, "Auto"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"max_parallel_jobs": True}, "max_parallel_jobs"),
        ({"random_seed": -1}, "random_seed"),
        ({"strategy": "Grid"}, "continuous"),
        ({"strategy": "Grid", "hyperparameter_ranges": {"a": IntegerParameter(1, 10**6)}}, "points"),
        ({"strategy": "Hyperband", "early_stopping_type": "Auto"}, "Use 'Off'"),
        ({"strategy_config": StrategyConfig(HyperbandStrategyConfig(9, 1))}, "Hyperband and ASHA"),
        ({"strategy": "ASHA", "strategy_config": StrategyConfig(HyperbandStrategyConfig(1, 9))}, "min_resource"),
        ({"completion_criteria_config": TuningJobCompletionCriteriaConfig(0)}, "not_improving"),
        ({"hyperparameters_to_keep_static": ["x"]}, "autotune"),
        ({"max_failures": 0}, "max_failures"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tuner(**changes)


def test_what_only_aws_knows_is_refused_by_name() -> None:
    for changes in ({"autotune": True}, {"estimator_name": "a"}):
        with pytest.raises(UnsupportedError, match=next(iter(changes))):
            tuner(**changes)
    with pytest.raises(UnsupportedError, match="create"):
        HyperparameterTuner.create()
    with pytest.raises(ConfigurationError, match="No tuning job available"):
        tuner().best_training_job()


@pytest.fixture
def parent(tmp_path: Path) -> HyperparameterTuner:
    """A tuner whose tuning job, ``earlier``, is on record."""
    made = tuner()
    made.latest_tuning_job = TuningRecord(tmp_path / "earlier")
    return made


def test_a_tuner_that_starts_with_the_results_of_another_has_ranges_of_its_own(parent: HyperparameterTuner) -> None:
    for child in (parent.transfer_learning_tuner(), parent.identical_dataset_and_algorithm_tuner()):
        child.add_fleet_ranges(hosts=IntegerParameter(1, 2))
        assert set(child._hyperparameter_ranges) == {"lr", "fleet.hosts"}
        assert child.warm_start_config is not None and child.warm_start_config.parents == {"earlier"}
    assert set(parent._hyperparameter_ranges) == {"lr"}
    assert parent.warm_start_config is None and parent.name == "earlier"


def test_a_tuner_that_starts_with_the_results_of_another_is_checked(parent: HyperparameterTuner) -> None:
    for wrong in ("nonsense", ""):
        with pytest.raises(ConfigurationError, match=r"transfer_learning_tuner\(estimator=…\) must be an estimator"):
            parent.transfer_learning_tuner(estimator=wrong)  # type: ignore[arg-type]
    parent.max_jobs = 0
    with pytest.raises(ConfigurationError, match="max_jobs"):
        parent.transfer_learning_tuner()


def test_the_request_and_back() -> None:
    warm = WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, {"earlier"})
    asked = tuner(
        strategy="Hyperband",
        strategy_config=StrategyConfig(HyperbandStrategyConfig(27, 1)),
        completion_criteria_config=TuningJobCompletionCriteriaConfig(5, True, 0.9),
        warm_start_config=warm,
        random_seed=3,
        max_runtime_in_seconds=60,
    )._spec("study")
    assert TuningSpec.from_config("study", asked.to_config(), asked.warm_start) == asked
    assert rules.from_dict(TuningSpec, rules.to_dict(asked)) == asked
    again = WarmStartConfig.from_job_desc(asked.warm_start)
    assert (again.type, again.parents) == (warm.type, warm.parents)


def test_one_trial_where_no_number_is_given_and_all_points_of_a_grid() -> None:
    assert tuner(max_jobs=None).max_jobs == 1
    grid = tuner(strategy="Grid", max_jobs=None, hyperparameter_ranges={"a": IntegerParameter(1, 7)})
    assert (grid.max_jobs, grid._spec("x").limit) == (None, 7)


def test_a_trial_has_places_of_its_own() -> None:
    template = TrainingJobSpec(
        name="study",
        hyperparameters={
            "lr": "1", "epochs": "3", "sagemaker_job_name": '"study"', "model_dir": '"s3://bucket/study/model"',
            "sagemaker_submit_directory": '"file:///home/jobs/study/source"',
        },
        checkpoint=CheckpointConfig(uri="s3://bucket/checkpoints"),
    )  # fmt: skip
    name = trials.job_name("study", 1.5, 6)
    assert name == trials.job_name("study", 1.5, 6) != trials.job_name("study", 2.5, 6)
    assert name.startswith("study-007-")
    made = trials.trial_spec(template, name, {"lr": "0.25"}, Path("/home"))
    assert dict(made.hyperparameters) == {
        "lr": "0.25", "epochs": "3", "sagemaker_job_name": f'"{name}"', "model_dir": f'"s3://bucket/{name}/model"',
        "sagemaker_submit_directory": f'"file:///home/jobs/{name}/source"',
    }  # fmt: skip
    assert made.checkpoint.uri == f"s3://bucket/checkpoints/{name}"


def test_who_goes_on_from_whose_checkpoint() -> None:
    config = PopulationConfig(size=4, quantile=0.25)
    draw = random.Random(0)
    found = [population.successor([0.9, 0.1, 0.5, 0.4], member, config, draw) for member in range(4)]
    assert found == [(0, False), (0, True), (2, False), (3, False)]
    # One that failed goes on from the best, and where all failed each begins again.
    assert population.successor([0.1, None, 0.2, 0.3], 1, config, draw) == (3, True)
    assert population.successor([None, None], 1, config, draw) == (1, False)


def test_hyperparameters_are_changed_within_their_ranges() -> None:
    given = {
        "lr": ContinuousParameter(0.1, 1.0),
        "momentum": ContinuousParameter(0.9, 0.99, "ReverseLogarithmic"),
        "units": IntegerParameter(1, 4),
        "kind": CategoricalParameter(["a", "b"]),
    }
    asked = ranges.to_request(given, plain=False)
    parameters = {"lr": 0.95, "momentum": 0.05, "units": 1, "kind": '"a"'}
    draw = random.Random(1)
    for _ in range(50):
        found = population.changed(parameters, asked, PopulationConfig(), draw)
        assert 0.1 <= found["lr"] <= 1.0
        assert 0.01 <= found["momentum"] <= 0.1
        assert found["units"] in (1, 2, 3, 4)
        assert found["kind"] in ('"a"', '"b"')
    never = population.changed(parameters, asked, PopulationConfig(resample_probability=0.0), draw)
    assert never["kind"] == '"a"'
    assert never["lr"] in (pytest.approx(0.76), 1.0)


def test_a_population_makes_whole_generations() -> None:
    some = tuner(strategy="PBT", max_jobs=11, population_config=PopulationConfig(size=4))
    assert some._spec("x").limit == 8
    with pytest.raises(ConfigurationError, match="less than the population"):
        tuner(strategy="PBT", max_jobs=3)
    with pytest.raises(ConfigurationError, match="sets 'lr' itself"):
        tuner(strategy="PBT", population_config=PopulationConfig(resource="lr"))
    with pytest.raises(ConfigurationError, match="strategy PBT"):
        tuner(population_config=PopulationConfig())


def test_an_objective_that_is_a_goal() -> None:
    goal = Goal.parse("time_to:val_accuracy>=0.97")
    assert goal == Goal("val_accuracy", True, 0.97)
    assert (goal.reached(0.97), goal.reached(0.5)) == (True, False)
    assert Goal.parse("time_to:loss <= 1e-3") == Goal("loss", False, 0.001)
    assert Goal.parse("val_accuracy") is None
    for text in ("time_to:val_accuracy", "time_to:x>=high", "time_to:x>=nan"):
        with pytest.raises(ConfigurationError, match="time_to:METRIC>=VALUE"):
            Goal.parse(text)
    assert not tuner("time_to:x>=1")._spec("x").maximize
    with pytest.raises(ConfigurationError, match="are not possible"):
        tuner("time_to:x>=1", strategy="ASHA")


def test_what_trials_run_on_is_searched_too() -> None:
    estimator = Estimator(entry_point="train.py", instance_count=3, distribution=MPI(processes_per_host=2))
    some = HyperparameterTuner(estimator, "time_to:x>=1", RANGES, max_jobs=4)
    some.add_fleet_ranges(processes_per_host=IntegerParameter(1, 2), fusion_threshold_mb=CategoricalParameter([1, 64]))
    values = {"lr": "0.5", "fleet.hosts": "2", "fleet.processes_per_host": "1", "fleet.fusion_threshold_mb": "64"}
    assert some._spec("x").ranges.keys() == values.keys()
    strategy = MPI(processes_per_host=2)
    template = TrainingJobSpec(
        name="study", resources=Resources(instance_count=3), hyperparameters=codec.encode(strategy.to_hyperparameters())
    )
    made = trials.trial_spec(template, "study-001", values, Path("/home"))
    assert made.instance_count == 2
    assert made.strategy == MPI(processes_per_host=1, fusion_threshold_mb=64)
    assert made.user_hyperparameters == {"lr": 0.5}
    for name, least in (("fusion_threshold_mb", 1), ("hosts", 0)):
        with pytest.raises(ConfigurationError, match="add_fleet_ranges"):
            tuner().add_fleet_ranges(**{name: IntegerParameter(least, 2)})
    with pytest.raises(ConfigurationError, match="add_fleet_ranges"):
        tuner().add_fleet_ranges()
    with pytest.raises(ValueError, match="processes_per_host"):
        some.add_fleet_ranges(processes_per_host=IntegerParameter(0, 2))


def train(lr: float, epochs: int) -> None: ...


def of_function(changes: dict[str, Any], strategy: str = "Random", given: Any = None) -> HyperparameterTuner:
    estimator = Estimator(entry_point=train, instance_count=2, distribution=MPI(), hyperparameters=given)
    return HyperparameterTuner(estimator, "score", {**RANGES, **changes}, strategy=strategy, max_jobs=4)


def test_a_function_is_checked_against_the_ranges() -> None:
    assert of_function({}, "PBT").plan().trial.hosts, "PBT sets the epochs"
    searched = of_function({"lr": IntegerParameter(1, 2)}, given={"epochs": 1})
    searched.add_fleet_ranges()
    assert searched.plan().trial.hosts
    for epochs, words in (
        (ContinuousParameter(1, 9), r"train\(\) expects int, got 1.0"),
        (CategoricalParameter([1, "two"]), r"train\(\) expects int, got 'two'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            of_function({"epochs": epochs}).plan()
    with pytest.raises(ConfigurationError, match=r"hyperparameter of train\(\) 'momentum'"):
        of_function({"momentum": ContinuousParameter(0, 1)}, given={"epochs": 1}).plan()
