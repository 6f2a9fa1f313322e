"""Estimator and TensorFlow: fit, attach, and what the SageMaker SDK's estimators have besides."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic import recorded

from container.contract import rules
from container.contract.strategies import MPI
from estimators import Estimator, TensorFlow
from estimators.callbacks import Callback
from estimators.client import attaching, request_builder
from estimators.client import estimator_base as module
from estimators.inputs import FileSystemInput, TrainingInput
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.settings import Settings
from estimators.testing import FakeOutcome


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    return tmp_path / "home"


def fake(**arguments: Any) -> TensorFlow:
    given = {"entry_point": "train.py", "source_dir": "code", "instance_type": "local_fake", **arguments}
    return TensorFlow(run_options=FakeOutcome().run_options(), **given)


@pytest.mark.parametrize("name", ["a_b", "-a", "a-", "", "x" * 64, "a b", 3])
def test_names_that_sagemaker_would_refuse_are_refused(name: Any, home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"job_name (is|has|must)"):
        fake().fit(job_name=name)
    assert list(home.glob("jobs/*")) == []


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"logs": "Alle"}, ConfigurationError, "Did you mean 'All'?"),
        ({"logs": "Rules"}, UnsupportedError, "Debugger"),
        ({"callbacks": [print]}, ConfigurationError, "not an estimators.callbacks.Callback"),
        ({"callbacks": "loss"}, ConfigurationError, "callbacks"),
        ({"callbacks": 3}, ConfigurationError, "callbacks"),
        ({"callbacks": Callback}, ConfigurationError, "callbacks"),
        ({"callbacks": Callback(), "wait": False}, ConfigurationError, "needs wait=True"),
        ({"wait": "yes"}, ConfigurationError, "wait"),
        ({"all": "no"}, ConfigurationError, "fit(all=…) must be True or False, got 'no'."),
        ({"experiment_config": {"ExperimentName": "e"}}, UnsupportedError, "SageMaker Experiments"),
    ],
)
def test_arguments_of_fit_are_checked(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        fake().fit(**arguments)


@pytest.mark.parametrize(
    ("arguments", "inputs", "said"),
    [
        ({"entry_point": "tran.py"}, None, "Did you mean 'train.py'?"),
        ({"entry_point": None, "instance_type": "local_process"}, None, "entry_point is missing"),
        ({}, {"train": "no/such/data"}, "channel 'train'"),
        ({}, {"train": 3}, "channel 'train' is 3"),
        ({}, {"no space": "."}, "the name of a channel is 'no space'"),
        ({"output_path": "/proc/nowhere"}, None, "output_path"),
        ({"output_path": "gs://bucket/x"}, None, "output_path is 'gs://bucket/x'; allowed: s3://"),
        ({"instance_type": "ml.p3.2xlarge"}, "s3://bucket/x", "unknown option of the backend 'ml'"),
        ({"metric_definitions": [{"Name": f"m{n}", "Regex": "(x)"} for n in range(41)]}, None, "at most 40"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    arguments: dict[str, Any], inputs: Any, said: str, home: Path
) -> None:
    estimator = fake(**arguments)
    with pytest.raises(ValueError, match=re.escape(said)):
        estimator.fit(inputs)
    assert list(home.glob("jobs/*")) == []
    assert estimator.latest_training_job is None


@pytest.mark.parametrize(
    ("logs", "shown"),
    [
        (True, (True, False)), ("All", (True, True)), ("Training", (True, False)), (["Training"], (True, False)),
        (["None", "All"], (True, True)), (False, (False, False)), ("None", (False, False)), ([], (False, False)),
    ],
)  # fmt: skip
def test_which_logs_are_shown(logs: Any, shown: tuple[bool, bool]) -> None:
    assert module._parse_logs(logs) == shown


def test_names_are_the_sdks() -> None:
    def name(estimator: TensorFlow, given: str | None = None) -> str:
        return estimator._draft(None, given).spec.name

    assert name(fake()).startswith("tensorflow-training-2")
    assert name(fake(image_uri="host/my_image:1")).startswith("my-image-2")
    assert name(fake(base_job_name="base")).startswith("base-2")
    assert name(fake(), "given") == "given"


# --- attach ---


def test_attach_gives_back_the_arguments(home: Path) -> None:
    given: dict[str, Any] = {
        "instance_count": 2,
        "hyperparameters": {"epochs": 3, "text": "a", "list": [1, None]},
        "environment": {"A": "b"},
        "distribution": MPI(processes_per_host=2, custom_mpi_options="-v", cycle_time_ms=2.5),
        "max_run": 77,
        "framework_version": "2.21",
        "py_version": "py3",
        "metric_definitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        "tags": {"a": "b"},
        "volume_size": 40,
        "container_log_level": 10,
        "checkpoint_s3_uri": str(home / "checkpoints"),
        "role": "arn:aws:iam::123456789012:role/me",
        "image_uri": "image:1",
        "base_job_name": "mine",
    }
    estimator = fake(**given)
    job = recorded(estimator)
    attached = TensorFlow.attach(job.name)
    assert attached.latest_training_job is not None and attached.latest_training_job.name == job.name
    for name in (*given, "entry_point", "model_dir", "output_path", "input_mode", "instance_type", "run_options"):
        if name != "hyperparameters":
            assert getattr(attached, name) == getattr(estimator, name), name
    assert attached.settings.hyperparameters == estimator.settings.hyperparameters
    assert attached.source_dir == str(home / "jobs" / job.name / "source")
    assert attached._draft(None, None).spec.name.startswith("mine-")


def test_attach_gives_back_the_arguments_of_a_job_on_sagemaker() -> None:
    given: dict[str, Any] = {
        "training_repository_access_mode": "Vpc",
        "training_repository_credentials_provider_arn": "arn:aws:lambda:us-east-1:123456789012:function:login",
        "enable_remote_debug": True,
        "enable_infra_check": True,
        "enable_session_tag_chaining": True,
    }
    settings = Settings(
        image_uri="image:1", instance_type="ml.m5.large", instance_count=1, output_path="s3://bucket", **given
    )
    spec = request_builder.build_spec(settings, name="job", channels=(), code=None, passes_model_dir=False)
    options = rules.to_dict(request_builder.build_options(settings))
    record: Any = SimpleNamespace(
        read_request=spec.to_request, read_options=lambda: options, source_dir=Path("none"), path=Path("/none")
    )
    attached = attaching.settings_of(record, passes_model_dir=False)
    assert {name: getattr(attached, name) for name in given} == given


@pytest.mark.parametrize("model_dir", [False, None, "/given"])
def test_attach_keeps_model_dir(model_dir: Any) -> None:
    assert TensorFlow.attach(recorded(fake(model_dir=model_dir)).name).model_dir == model_dir


def test_an_image_with_its_own_entry_point_gets_plain_texts_as_from_the_sdk() -> None:
    # The SDK 2.x: `{str(k): str(v)}` for an Estimator without a script (`_TrainingJob._get_train_args`).
    values = {"objective": "reg:squarederror", "eta": 0.2, "rounds": 50, "deep": True, "none": None, "text": "1e-3",
              "limit": float("inf"), "list": [1, "a"]}  # fmt: skip
    estimator = Estimator("xgboost:1.7", instance_type="local_fake", hyperparameters=values)
    assert estimator.hyperparameters() == {name: str(value) for name, value in values.items()}
    job = recorded(estimator)
    assert job.describe()["HyperParameters"] == {name: str(value) for name, value in values.items()}
    again = Estimator.attach(job.name)
    assert again.hyperparameters() == estimator.hyperparameters()
    again.set_hyperparameters(text="2e-3")
    assert again.hyperparameters()["text"] == "2e-3"


def test_hyperparameters_are_json_as_in_the_sdk() -> None:
    estimator = fake(hyperparameters={"epochs": 3, "name": "a b"}, distribution={"mpi": {"enabled": True}})
    assert estimator.hyperparameters() == {
        "epochs": "3",
        "name": '"a b"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "1",
        "sagemaker_mpi_custom_mpi_options": '""',
        "model_dir": '"/opt/ml/model"',
    }
    estimator.set_hyperparameters(epochs=4, rate=0.1)
    assert estimator.hyperparameters()["epochs"] == "4"
    assert estimator.hyperparameters()["rate"] == "0.1"
    with pytest.raises(ConfigurationError, match="are reserved"):
        estimator.set_hyperparameters(sagemaker_program="x")
    with pytest.raises(AttributeError, match="set_hyperparameters"):
        estimator.hyperparameters = {}


# --- the rest of the SDK's face ---


def test_positional_arguments_are_the_sdks() -> None:
    estimator = Estimator("image:1", "role", 2, "local_fake")
    assert (estimator.image_uri, estimator.role) == ("image:1", "role")
    assert (estimator.instance_count, estimator.instance_type) == (2, "local_fake")
    tensorflow = TensorFlow("py3", "2.21", False, "image:1", MPI())
    assert (tensorflow.py_version, tensorflow.framework_version, tensorflow.model_dir) == ("py3", "2.21", False)
    with pytest.raises(TypeError, match="takes at most 4"):
        Estimator("image", "role", 1, "local_fake", 30)
    with pytest.raises(TypeError, match="image_uri twice"):
        Estimator("image", image_uri="other")


MANIFEST = TrainingInput("s3://bucket/x", s3_data_type="AugmentedManifestFile", attribute_names=["a-ref"])


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (FileSystemInput("fs-0123456789abcdef0", "EFS", "/data"), UnsupportedError, "EFS and FSx file systems exist"),
        (TrainingInput("s3://bucket/x", compression="Gzip"), ConfigurationError, "compression 'Gzip' is for Pipe mode"),
        (MANIFEST, ConfigurationError, "can only be read in Pipe mode"),
    ],
    ids=["file system", "Gzip", "manifest"],
)
def test_inputs_that_no_job_of_this_machine_can_have_are_refused_by_name(
    inputs: Any, error: type[Exception], said: str, home: Path
) -> None:
    with pytest.raises(error, match=said):
        TensorFlow(entry_point="code/train.py", source_dir=".").fit(inputs)
    assert list(home.glob("jobs/*")) == []


def test_the_signature_is_shown() -> None:
    parameters = inspect.signature(TensorFlow).parameters
    assert parameters["max_run"].default == 86400
    assert "model_dir" in parameters
    assert "model_dir" not in inspect.signature(Estimator).parameters
    assert "instance_groups" not in parameters
    assert "instance_count" in dir(TensorFlow())


@pytest.mark.parametrize("name", ["deploy", "transformer", "register", "create_model"])
def test_what_is_not_training_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        getattr(TensorFlow(), name)()


def test_attributes_that_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="Estimator has no attribute 'model_dir'"):
        _ = Estimator().model_dir
    with pytest.raises(AttributeError):
        _ = TensorFlow().nonsense
    assert not hasattr(TensorFlow(), "_repr_png_")


def test_before_the_first_job_there_is_nothing() -> None:
    estimator = TensorFlow()
    assert estimator.latest_training_job is None
    assert estimator.model_data is None
    for use in (estimator.logs, lambda: estimator.training_job_analytics):
        with pytest.raises(ConfigurationError, match="no training job yet"):
            use()


def test_subclasses_are_estimators() -> None:
    class Mine(TensorFlow):
        """One's own."""

    class WithArguments(TensorFlow):
        def __init__(self, size: int, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.size = size

    assert Mine(entry_point="x.py").entry_point == "x.py"
    mine = WithArguments(3, instance_count=2)
    assert (mine.size, mine.instance_count) == (3, 2)
    with pytest.raises(TypeError, match="unknown argument of WithArguments 'instance_counts'"):
        WithArguments(3, instance_counts=2)


def test_estimators_can_be_copied_and_pickled() -> None:
    import copy
    import pickle

    estimator = TensorFlow(entry_point="x.py", hyperparameters={"a": [1]}, distribution=MPI(processes_per_host=2))
    for twin in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
        assert twin.settings == estimator.settings


def test_it_shows_itself() -> None:
    assert repr(TensorFlow(entry_point="x.py", instance_count=2)) == (
        "TensorFlow(instance_count=2, instance_type='local_process', entry_point='x.py')"
    )
