"""Hostile sizes and types: each is refused by name, in a sentence, at once and in little memory."""

from __future__ import annotations

import inspect
import json
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.names import shown
from estimators import (
    MPI,
    CollectiveAllReduce,
    ElasticHorovod,
    Estimator,
    FailurePolicy,
    ParameterServer,
    RunOptions,
    TensorFlow,
)
from estimators.faults import Interrupt, Kill, RemoveHost, SpotMarket
from estimators.job import bounds, validation
from estimators.job.errors import ConfigurationError, FleetfitError
from estimators.job.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from estimators.job.request import Algorithm, OutputConfig, Resources, StoppingCondition, TrainingJobSpec

#: The most that an error says, in characters.
_LONGEST = 1500


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class _Deep(list[Any]):
    """Hypothesis, which shows what fails, is not to fall into it itself."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("_Deep(…)")


_HUGE = 10**400


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"distribution": {"mpi": {"enabled": True, "processes_per_host": 10**9}}}, "from 1 to 1,024, got 1000000000"),
        ({"instance_count": 10**5}, "instance_count must be a whole number from 1 to 1,024, got 100000."),
        ({"instance_count": _HUGE}, "instance_count must be a whole number from 1 to 1,024"),
        (
            {"instance_count": 1000, "distribution": {"mpi": {"enabled": True, "processes_per_host": 100}}},
            "1,000 hosts × 100 processes are 100,000 ranks; a job may have at most 8,192.",
        ),
        ({"hyperparameters": {"a": _circle()}}, "'a': the value is nested more than 64 levels deep, or contains"),
        ({"hyperparameters": {"a": _deep(100_000)}}, "'a': the value is nested more than 64 levels deep"),
        ({"hyperparameters": {"a": 10**5000}}, "hyperparameter 'a': the number has more than 300 digits"),
        ({"hyperparameters": _deep(100_000)}, "hyperparameters must be a dict, got a value of type list."),
        ({"tags": 5}, "tags must be a list such as [{'Key': 'team', 'Value': 'vision'}], or a dict, got 5."),
        ({"tags": {"a": _deep(100_000)}}, "tags: each tag must be"),
        ({"dependencies": 5}, "dependencies must be a list such as ['lib'], got 5."),
        ({"dependencies": b"lib"}, "dependencies must be a list"),
        ({"dependencies": ["x" * 5000]}, "dependencies: the value has 5,000 bytes; at most 4,096 are possible"),
        ({"metric_definitions": 5}, "metric_definitions must be a list such as [{'Name': 'loss'"),
        ({"metric_definitions": range(10**12)}, "metric_definitions has too many items; at most 100,000 are allowed."),
        ({"metric_definitions": [{"Name": "a", "Regex": "(" * 200 + ")" * 200}]}, None),
        ({"metric_definitions": [{"Name": "a", "Regex": "(x)" * 5000}]}, "has 15,000 characters; at most 500"),
        ({"max_run": _HUGE}, "max_run must be a whole number from 1 to 315,360,000, got 1000"),
        ({"max_wait": _HUGE, "use_spot_instances": True}, "max_wait must be a whole number from 1 to 315,360,000"),
        ({"volume_size": _HUGE}, "volume_size must be a whole number from 1 to 65,536"),
        ({"hang_timeout": _HUGE}, "hang_timeout must be a number of seconds above 0 and at most 315,360,000, or None"),
        ({"distribution": {"mpi": {"enabled": True, "custom_mpi_options": "-x A=\0"}}}, "custom_mpi_options=…): a NUL"),
        ({"distribution": {"mpi": {"enabled": True, "fusion_threshold_mb": 1e308}}}, "to 1,000,000,000, or None"),
        ({"distribution": {"mpi": {"enabled": True, "cycle_time_ms": _HUGE}}}, "from 0 to 1,000,000,000, or None"),
        ({"entry_point": "\ud800.py"}, "entry_point: '\\ud800.py' is not valid Unicode text."),
        ({"entry_point": "x" * 300}, "entry_point: a name in the path has 300 characters; at most 255 are possible"),
        ({"entry_point": "a\0b"}, "entry_point: a NUL character"),
        ({"output_path": "/out\0"}, "output_path: a NUL character"),
        ({"model_dir": "a\0b"}, "model_dir: a NUL character"),
        ({"instance_type": _deep(100_000)}, "instance_type must be a string such as 'local_process', got a value"),
        ({"base_job_name": _Unprintable()}, "a string, or None, got a value of type _Unprintable."),
        ({"role": "x" * 10**6}, "role: the value has 1,000,000 bytes"),
    ],
)  # fmt: skip
def test_a_hostile_argument_is_refused_where_it_is_made(arguments: dict[str, Any], said: str | None) -> None:
    given = {"entry_point": "train.py", **arguments}
    if said is None:
        TensorFlow(**given)
        return
    with pytest.raises(ConfigurationError) as caught:
        TensorFlow(**given)
    assert said in str(caught.value)
    assert len(str(caught.value)) < _LONGEST


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RunOptions(priority=1001), "1,000 (jobs with the highest number start first), got 1001"),
        (lambda: RunOptions(stop_grace=_HUGE), "stop_grace=…) must be a number of seconds from 0 to 315,360,000"),
        (lambda: RunOptions(backend_options=5), "backend_options=…) must be a dict with names as keys, got 5"),  # type: ignore[arg-type]
        (lambda: RunOptions(backend_options={"a": _circle()}), "may only contain strings"),
        (lambda: RunOptions(dispatcher=5), "dispatcher=…) must be a string, or None, got 5."),  # type: ignore[arg-type]
        (lambda: FailurePolicy(cooldown=(_HUGE, 1)), "0 to 315,360,000, got 1000"),
        (lambda: SpotMarket(rate=_HUGE), "rate=…) must be a number from 0 to 315,360,000, got 1000"),
        (lambda: SpotMarket(trace=[_circle()]), "trace=…): each item must be"),  # type: ignore[list-item, arg-type]
        (lambda: Kill(rank=0, at_s=_HUGE), "at_s=…) must be a number of seconds from 0 to 315,360,000"),
        (lambda: Kill(rank=0, at_line=b"x"), "at_line=…) must be a string, or None, got b'x'."),  # type: ignore[arg-type]
        (lambda: TrainingInput("/data", attribute_names=5), "attribute_names=…) must be a list"),  # type: ignore[arg-type]
        (lambda: TrainingInput("/data", content_type=_circle()), "content_type=…) must be a string"),  # type: ignore[arg-type]
        (lambda: TrainingInput("/data", s3_data_type="x" * 10**6), "unknown TrainingInput(s3_data_type=…)"),
    ],
)  # fmt: skip
def test_a_hostile_option_is_refused_where_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value)
    assert len(str(caught.value)) < _LONGEST


def test_what_a_real_user_has_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    config = {"layers": [{"units": 64, "init": {"kind": "he", "args": [1, [2, [3]]]}}]}
    estimator = TensorFlow(
        entry_point="train.py", instance_count=2, distribution=MPI(processes_per_host=192), max_run=28 * 86400,
        hyperparameters={"config": config, "seed": 2**63}, tags={"team": "vision"}, dependencies=(), volume_size=16384,
    )  # fmt: skip
    assert len(str(estimator.plan())) > 0


def test_the_largest_job_can_still_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert threading.active_count() < 50
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), before[1]))  # 1 GiB more than there is now
    try:
        plan = TensorFlow(entry_point="train.py", instance_count=bounds.MAX_HOSTS).plan()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(plan.plan.hosts) == bounds.MAX_HOSTS


@pytest.mark.parametrize(
    ("hosts", "max_run", "said"),
    [
        (1000, 60, "1,000 hosts × 100 processes are 100,000 ranks; a job may have at most 8,192."),
        (10**5, 60, "ResourceConfig.InstanceCount is 100000; at most 1,024 are possible."),
        (1, _HUGE, "StoppingCondition.MaxRuntimeInSeconds is 1000"),
    ],
)
def test_a_request_of_a_client_has_the_same_bounds(hosts: int, max_run: int, said: str) -> None:
    spec = TrainingJobSpec(
        name="big",
        role="r",
        algorithm=Algorithm(image="image"),
        output=OutputConfig(path="/out"),
        resources=Resources(instance_type="local_process", instance_count=hosts, volume_size_gb=30),
        stopping=StoppingCondition(max_run_s=max_run),
        hyperparameters=codec.encode(MPI(processes_per_host=100).to_hyperparameters()),
    )
    with pytest.raises(ConfigurationError) as caught:
        validation.check_spec(spec)
    assert said in str(caught.value)


def test_json_that_is_nested_too_deep_stays_a_text() -> None:
    text = "[" * 1200 + "]" * 1200
    assert codec.decode_value(text) == text


def test_what_an_error_shows_is_bounded_and_never_an_error() -> None:
    assert shown("x" * 10**6) == "'" + "x" * 299 + "…"
    assert shown(_deep(100_000)) == "a value of type list"
    assert shown(10**5000) == "a value of type int"
    assert shown(_Unprintable()) == "a value of type _Unprintable"
    assert shown(0.1) == "0.1"


# --- fuzzing: every constructor takes what it can use, or says in a sentence what is wrong ---

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**5, 10**7, 10**9, _HUGE, -_HUGE]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\0", "a\0b", "\ud800", "x" * 5000, "(" * 400, "a=b", "../..", "s3://b/k", "file://x"]),
    st.binary(max_size=5),
    st.sampled_from([object(), object, len, 1j, range(10**12), memoryview(b"x"), _circle()]),
    st.builds(lambda: _Deep(_deep(100_000))),
    st.builds(lambda: 10**5000),
    st.builds(_Unprintable),
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(), st.none()), inner, max_size=3),
        st.fixed_dictionaries({"Name": inner, "Regex": inner}),
        st.fixed_dictionaries({"Key": inner, "Value": inner}),
        st.fixed_dictionaries({"mpi": st.fixed_dictionaries({"enabled": st.just(True), "processes_per_host": inner})}),
    ),
    max_leaves=5,
)
_REQUIRED: dict[type, dict[str, Any]] = {
    TensorFlow: {"entry_point": "train.py"},
    Estimator: {"entry_point": "train.py"},
    TrainingInput: {"s3_data": "/data"},
    FileSystemInput: {"file_system_id": "fs", "file_system_type": "EFS", "directory_path": "/"},
    ShuffleConfig: {"seed": 1},
    Kill: {"rank": 0, "at_s": 1},
    RemoveHost: {"host": "algo-1", "at_s": 1},
    Interrupt: {"host": "algo-1", "at_s": 1},
}
_MADE = (
    *_REQUIRED, MPI, ParameterServer, CollectiveAllReduce, ElasticHorovod, RunOptions, FailurePolicy, SpotMarket,
)  # fmt: skip
ARGUMENTS = [(made, name) for made in _MADE for name in inspect.signature(made).parameters]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(place=st.sampled_from(ARGUMENTS), value=VALUES)
def test_no_value_gets_past_a_constructor_with_another_error(place: tuple[Any, str], value: Any) -> None:
    see_that_it_is_taken_or_refused(*place, value)


@pytest.mark.parametrize("value", [10**5000, [[["a"]]], object(), ("x",)], ids=["huge", "nested", "object", "tuple"])
def test_each_argument_of_a_jobs_options_takes_or_refuses_it(value: Any) -> None:
    for name in inspect.signature(RunOptions).parameters:
        see_that_it_is_taken_or_refused(RunOptions, name, value)


def see_that_it_is_taken_or_refused(made: Any, name: str, value: Any) -> None:
    try:
        result = made(**{**_REQUIRED.get(made, {}), name: value})
        if isinstance(result, RunOptions):
            assert rules.from_dict(RunOptions, json.loads(json.dumps(rules.to_dict(result)))) == result
    except FleetfitError as error:
        said = str(error)
    except (TypeError, ValueError) as error:  # of the strategies, which know no other
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        assert traceback is not None
        line = inspect.getsourcelines(traceback.tb_frame.f_code)
        assert any("raise " in text for text in line[0]), f"{made.__name__}({name}=…) let {error!r} through"
        said = str(error)
    else:
        return
    assert said.endswith((".", ")", "^")) or "\n" in said
    assert len(said) < _LONGEST
    said.encode()
