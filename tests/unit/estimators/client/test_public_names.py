"""The public names are these, each is listed once, and none is imported before it is used."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import estimators
import fleetfit
from estimators.tuner import ContinuousParameter, HyperparameterTuner

ROOT = Path(estimators.__file__).parents[1]

#: Each public module -> its names.
PUBLIC = {
    "estimators": (
        "ArgumentNameError", "BackendError", "ClusterPlan", "CollectiveAllReduce", "Comparison", "ComparisonWarning",
        "ConfigurationError", "Distribution", "ElasticHorovod", "ElasticTorchDistributed", "Estimator", "Failure",
        "FailurePolicy", "FleetfitError", "JobExistsError", "JobNotFoundError", "JobUnreachableError", "MPI",
        "Mirrored", "ParameterServer", "PreflightWarning", "PyTorch", "RecordError", "Result", "RunOptions",
        "SecondaryStatus", "TensorFlow", "TorchDistributed", "TrainingJob", "TrainingJobError", "TrainingJobStatus",
        "TuningJobError", "UnsupportedError", "analytics", "callbacks", "compare", "faults", "inputs", "planning",
        "remote_function", "testing", "tuner",
    ),
    "estimators.analytics": ("HyperparameterTuningJobAnalytics", "TrainingJobAnalytics"),
    "estimators.callbacks": (
        "Callback", "GrowWithEpochs", "MLflowCallback", "Metric", "NotifyCallback", "RandomResize",
        "TensorBoardCallback", "WandbCallback",
    ),
    "estimators.faults": ("Interrupt", "Kill", "RemoveHost", "SpotMarket"),
    "estimators.inputs": ("Channel", "FileSystemInput", "ShuffleConfig", "TrainingInput"),
    "estimators.planning": (
        "FleetRecommendation", "Forecast", "Recommendation", "Timings", "Workload", "recommend", "simulate",
    ),
    "estimators.remote_function": ("RemoteExecutor", "RemoteFuture", "remote"),
    "estimators.testing": ("FakeOutcome",),
    "estimators.tuner": (
        "CategoricalParameter", "ContinuousParameter", "HyperbandStrategyConfig", "HyperparameterTuner",
        "IntegerParameter", "PopulationConfig", "SharedFleetConfig", "StrategyConfig",
        "TuningJobCompletionCriteriaConfig", "WarmStartConfig", "WarmStartTypes",
    ),
}  # fmt: skip

#: Classes of values that users are given.
RESULTS = {
    "Channel", "ClusterPlan", "Comparison", "Distribution", "Failure", "FleetRecommendation", "Forecast", "Metric",
    "Recommendation", "RemoteFuture", "Result", "TrainingJob",
}  # fmt: skip
#: The constructors and functions that users call, and some methods.
CALLED = [
    value
    for module, names in PUBLIC.items()
    for name in names
    if name not in RESULTS
    for value in [getattr(importlib.import_module(module), name)]
    if inspect.isfunction(value) or (isinstance(value, type) and not issubclass(value, (BaseException, enum.Enum)))
] + [
    estimators.TensorFlow.fit, estimators.TensorFlow.plan, estimators.TrainingJob.attach, estimators.TrainingJob.wait,
    estimators.TrainingJob.logs, HyperparameterTuner.fit, HyperparameterTuner.attach,
]  # fmt: skip


def taken(called: Callable[..., object]) -> list[str]:
    """Return the names of the arguments that may be given by name."""
    parameters = inspect.signature(called).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in kinds and one.name != "self"]


def test_at_most_45_names_are_on_top() -> None:
    assert len(estimators.__all__) <= 45


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these_and_each_is_there(module: str) -> None:
    found = importlib.import_module(module)
    assert tuple(found.__all__) == tuple(sorted(PUBLIC[module]))
    for name in found.__all__:
        value = getattr(found, name)
        assert value.__name__.rpartition(".")[2] in (name, "CollectiveAllReduce"), name
    assert set(found.__all__) <= set(dir(found))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_line_of_a_stub_is_one_name(module: str) -> None:
    """The stub is read line by line, and a type checker only takes a name that is repeated."""
    stub = Path(importlib.import_module(module).__file__ or "").with_suffix(".pyi")
    lines = stub.read_text(encoding="utf-8").splitlines()
    names = [re.fullmatch(r"from [\w.]+ import (\w+) as \1", line) for line in lines]
    assert sorted(name[1] if name else "" for name in names) == sorted(PUBLIC[module])


@pytest.mark.parametrize("called", [one for one in CALLED if taken(one)])
def test_a_wrong_argument_gets_a_suggestion(called: Callable[..., object]) -> None:
    """Python itself suggests nothing before 3.13."""
    name = taken(called)[-1]
    self = [object()] if "self" in inspect.signature(called).parameters else []
    with pytest.raises(TypeError, match=rf"unknown [ \w]+( of [\w()]+)? '{name}s'. Did you mean '{name}'\?"):
        called(*self, **{f"{name}s": 1})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ContinuousParameter(5), r"ContinuousParameter\(\) needs the argument 'max_value'\."),
        (lambda: estimators.RunOptions("x"), r"RunOptions\(\) takes only arguments with names, such as RunOptions\(p"),
        (lambda: estimators.TensorFlow.attach(), r"attach\(\) needs the argument 'training_job_name'\."),
        (lambda: estimators.FailurePolicy(cooldown=("a", 1)), r"cooldown"),
    ],
)
def test_calls_that_do_not_fit_are_explained(call: Callable[[], object], said: str) -> None:
    with pytest.raises(estimators.ConfigurationError, match=said):
        call()


def test_there_are_no_other_public_modules() -> None:
    modules = {f"estimators.{path.stem}" for path in (ROOT / "estimators").glob("*.pyi")}
    assert modules == {"estimators.__init__", *PUBLIC} - {"estimators"}


def test_the_projects_name_has_the_same_names() -> None:
    assert fleetfit.__all__ == estimators.__all__
    for module in PUBLIC:
        if module != "estimators":
            ours, same = importlib.import_module(module), importlib.import_module(f"fleetfit.{module.split('.')[1]}")
            assert all(getattr(same, name) is getattr(ours, name) for name in PUBLIC[module])


def test_the_reference_lists_the_same_names() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = text.partition("## Names to import\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(estimators[\w.]*)` \| (.*) \| .* \|$", section, re.MULTILINE)
    listed: dict[str, set[str]] = {}
    for module, names in rows:
        listed.setdefault(module, set()).update(re.findall(r"`(\w+)`", names))
    modules = {module.partition(".")[2] for module in PUBLIC if "." in module}
    assert listed == {module: set(names) - modules for module, names in PUBLIC.items()}


def test_there_are_no_others() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Tensorflow'"):
        _ = estimators.Tensorflow  # type: ignore[attr-defined]
