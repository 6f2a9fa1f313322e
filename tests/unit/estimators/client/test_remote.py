"""What @remote and compare() make of what they are given, and what they refuse, before anything starts."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from synthetic import recorded

from estimators import ConfigurationError, Estimator, UnsupportedError
from estimators.client import compare
from estimators.client.functions import packing
from estimators.client.functions import remote as functions
from estimators.records.states import TrainingJobStatus
from estimators.remote_function import remote

FILE = "SageMaker: {PythonSDK: {Modules: {RemoteFunction: %s}}}"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The SDK's file of defaults; it is empty."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", str(tmp_path))
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path))
    (tmp_path / "config.yaml").touch()
    return tmp_path / "config.yaml"


def takes(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, r"takes\(\) cannot be called like this: missing a required argument: 'number'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"c": 2}, "got an unexpected keyword argument 'c'"),
    ],
)
def test_a_call_that_the_function_does_not_take_is_a_type_error(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        remote(takes)(*args, **kwargs)


def test_a_decorated_function_is_planned_and_is_no_entry_point(config: Path) -> None:
    double = remote(takes)
    assert double.wrapped_func(4) == 8
    assert double.estimator(4).plan().hosts
    with pytest.raises(ConfigurationError, match=r"takes\(\) is decorated with @remote.* Give takes\.wrapped_func"):
        packing.check(double)
    assert not (config.parent / "home").exists()


def test_a_call_is_cancelled_while_its_job_starts() -> None:
    done: list[str] = []

    class Job:
        name, status = "job", TrainingJobStatus.STOPPED

        def stop(self) -> None:
            done.append("stopped")

        def wait(self, logs: bool) -> None:
            done.append("waited")

    def launch(*_: Any, **__: Any) -> Job:
        assert future.cancel()
        return Job()

    estimator: Any = SimpleNamespace(latest_training_job=None, _launch=launch)
    future = functions.RemoteFuture(estimator)
    functions._run(estimator, future, cast(Any, None))
    assert done == ["stopped", "waited"]
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


def test_tags_are_pairs_as_well_and_join_the_defaults(config: Path) -> None:
    config.write_text(FILE % "{Tags: [{Key: team, Value: a}, {Key: cost, Value: b}]}")
    for given in ([("team", "z")], {"team": "z"}, [{"Key": "team", "Value": "z"}]):
        tags = remote(lambda: None, tags=given).estimator().settings.tags
        assert [(tag.key, tag.value) for tag in tags] == [("team", "z"), ("cost", "b")]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"instance_cuont": 2}, ConfigurationError, "argument of remote.* Did you mean 'instance_count'"),
        ({"instance_count": 0}, ConfigurationError, "instance_count"),
        ({"pre_execution_commands": ["pip install x"]}, UnsupportedError, "pre_execution_commands is not available"),
        ({"dependencies": "auto_capture"}, UnsupportedError, "conda"),
        ({"use_mpirun": True, "use_torchrun": True}, ConfigurationError, "exclude each other"),
        ({"nproc_per_node": 2}, ConfigurationError, "nproc_per_node is for"),
    ],
)
def test_arguments_of_the_decorator_are_checked_where_they_are_given(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        remote(**arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", r" cannot be read"),
        (FILE % "{InstanceTyp: x}", "Did you mean 'InstanceType'"),
        (FILE % "{VpcConfig: {Subnet: x}}", "Did you mean 'Subnets'"),
        (None, r"_CONFIG_OVERRIDE\) cannot be read: No such file"),
    ],
)
def test_a_file_of_defaults_that_cannot_be_is_refused(text: str | None, words: str, config: Path) -> None:
    config.unlink() if text is None else config.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        remote(takes)


def test_functions_are_compared_by_their_names() -> None:
    def slow() -> None: ...

    @remote(instance_count=2)
    def twice() -> None: ...

    things, names = compare._things((slow, twice), None)
    assert names == ["slow", "twice"] and [thing.instance_count for thing in things] == [1, 2]
    with pytest.raises(ConfigurationError, match="is a class"):
        compare._things((slow, Estimator), None)


def test_an_attached_estimator_stands_for_its_job(tmp_path: Path) -> None:
    job = recorded(Estimator("image:1", instance_type="local_fake"))
    attached = Estimator.attach(job.name)
    assert attached.result().job_name == job.name
    assert [one.job_name for one in compare.compare({"a": attached}).results] == [job.name]
    for wrong in ({"inputs": str(tmp_path)}, {"repeat": 3}):
        with pytest.raises(ConfigurationError, match="is for estimators"):
            compare.compare(attached, **wrong)
    attached.set_hyperparameters(epochs=2)
    assert compare._things((attached,), None)[0] == [attached], "with another argument it is an estimator like others"
    with pytest.raises(ConfigurationError, match="no training job yet"):
        Estimator("image:1").result()
