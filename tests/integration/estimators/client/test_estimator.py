"""Estimator and TensorFlow: fit, attach, and what the SageMaker SDK's estimators have besides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from container.contract.strategies import MPI
from estimators import (
    Estimator,
    FakeOutcome,
    JobExistsError,
    JobNotFoundError,
    PreflightWarning,
    TensorFlow,
    TrainingJobError,
)
from estimators.job import naming

SCRIPT = """\
import json, os, sys
print("arguments", json.dumps(sys.argv[1:]))
print("host", os.environ["SM_CURRENT_HOST"], "variable", os.environ.get("GREETING"))
print("loss: 0.25")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    return tmp_path / "home"


def fake(outcome: FakeOutcome | None = None, **arguments: Any) -> TensorFlow:
    options = (outcome or FakeOutcome()).run_options()
    given = {"entry_point": "train.py", "source_dir": "code", "instance_type": "local_fake", **arguments}
    return TensorFlow(run_options=options, **given)


def jobs(home: Path) -> list[str]:
    return sorted(os.listdir(home / "jobs")) if (home / "jobs").exists() else []


# --- on real processes ---


def test_a_real_job(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="code",
        instance_count=2,
        hyperparameters={"text": 'it\'s "$HOME"\n ü', "empty": "", "none": None, "flag": True, "n": 3},
        environment={"GREETING": "hello you"},
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        base_job_name="real",
        model_dir=False,
    )
    job = estimator.fit(logs="All")
    assert job.status == "Completed"
    assert job is estimator.latest_training_job
    assert estimator.jobs == [job]
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("[algo-2:rank 1] arguments"))
    expected = ["--empty", "", "--flag", "True", "-n", "3", "--none", "", "--text", 'it\'s "$HOME"\n ü']
    assert json.loads(line.split("arguments ", 1)[1]) == expected
    assert "[algo-1:rank 0] host algo-1 variable hello you" in out
    assert list(estimator.training_job_analytics.dataframe()["value"]) == [0.25, 0.25]
    assert (home / "jobs" / job.name / "source" / "train.py").read_text() == SCRIPT
    assert estimator.model_data is None


def test_a_failing_job_says_why() -> None:
    Path("code/train.py").write_text("def inner():\n    raise KeyError('no such column')\ninner()\n")
    estimator = TensorFlow(entry_point="train.py", source_dir="code")
    with pytest.raises(TrainingJobError) as caught:
        estimator.fit(logs=False)
    assert str(caught.value).rstrip().endswith("KeyError: 'no such column'")
    assert (caught.value.host, caught.value.rank, caught.value.exit_code) == ("algo-1", 0, 1)
    assert estimator.latest_training_job is not None
    assert estimator.latest_training_job.status == "Failed"


@pytest.mark.parametrize(
    ("entry", "files"),
    [
        ("run.sh", {"run.sh": 'echo "shell $# $2"\n'}),
        (
            "pkg.task",
            {"pkg/__init__.py": "", "pkg/task.py": "import sys; print('shell', len(sys.argv[1:]), sys.argv[2])"},
        ),
        ("pkg", {"pkg/__main__.py": "import sys; print('shell', len(sys.argv[1:]), sys.argv[2])"}),
    ],
)
def test_other_entry_points_run(entry: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in files.items():
        path = Path("code") / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    TensorFlow(entry_point=entry, source_dir="code", model_dir=False, hyperparameters={"x": "a b"}).fit()
    assert "[algo-1:rank 0] shell 2 a b" in capsys.readouterr().out


# --- attach ---


def test_a_job_can_be_attached_to_from_another_process(home: Path) -> None:
    job = fake(FakeOutcome(metrics={"accuracy": [0.9]}), base_job_name="first").fit(logs=False)
    program = (
        "from estimators import TensorFlow\n"
        f"estimator = TensorFlow.attach({job.name!r})\n"
        "job = estimator.latest_training_job\n"
        "print(job.name, str(job.status), job.metrics()['value'].tolist(), estimator.base_job_name)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/").stdout
    assert out.split() == [job.name, "Completed", "[0.9]", "first"]


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        job = estimator.fit(logs=False)
    attached = TensorFlow.attach(job.name)
    assert attached.latest_training_job.name == job.name
    for name in (*given, "entry_point", "model_dir", "output_path", "input_mode", "instance_type", "run_options"):
        if name != "hyperparameters":
            assert getattr(attached, name) == getattr(estimator, name), name
    assert attached.settings.hyperparameters == estimator.settings.hyperparameters
    assert attached.source_dir == str(home / "jobs" / job.name / "source")
    again = attached.fit(logs=False)
    assert again.status == "Completed"
    assert again.name.startswith("mine-")
    assert again.name != job.name


@pytest.mark.parametrize("model_dir", [False, None, "/given"])
def test_attach_keeps_model_dir(model_dir: Any) -> None:
    job = fake(model_dir=model_dir).fit(logs=False)
    assert TensorFlow.attach(job.name).model_dir == model_dir


def test_jobs_that_do_not_exist_are_named() -> None:
    fake().fit(logs=False, job_name="my-first-job")
    with pytest.raises(JobNotFoundError, match="Did you mean 'my-first-job'"):
        Estimator.attach("my-first-jop")


# --- names ---


def test_names_are_the_sdks(home: Path) -> None:
    assert fake().fit(logs=False).name.startswith("tensorflow-training-2")
    assert fake(image_uri="host/my_image:1").fit(logs=False).name.startswith("my-image-2")
    assert fake(base_job_name="base").fit(logs=False).name.startswith("base-2")
    assert fake().fit(logs=False, job_name="given").name == "given"


def test_a_name_is_used_once() -> None:
    estimator = fake()
    estimator.fit(logs=False, job_name="once")
    with pytest.raises(JobExistsError, match="'once' exists already"):
        estimator.fit(logs=False, job_name="once")


def test_a_generated_name_that_is_taken_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake().fit(logs=False, job_name="taken")
    names = iter(["taken", "taken", "free"])
    monkeypatch.setattr(naming, "job_name", lambda base: next(names))
    assert fake().fit(logs=False).name == "free"


# --- what is refused at fit, before anything starts ---


@pytest.mark.parametrize(
    ("arguments", "inputs", "said"),
    [
        ({"entry_point": "tran.py"}, None, "Did you mean 'train.py'?"),
        ({"source_dir": "cod"}, None, "Did you mean 'code'?"),
        ({"entry_point": None, "instance_type": "local_process"}, None, "entry_point is missing"),
        ({}, {"train": "no/such/data"}, "channel 'train'"),
        ({}, {"train": 3}, "channel 'train' is 3"),
        ({}, {"no space": "."}, "ChannelName is 'no space'"),
        ({"output_path": "/proc/nowhere"}, None, "output_path"),
        ({"output_path": "gs://bucket/x"}, None, "S3OutputPath is 'gs://bucket/x'; allowed: s3://"),
        ({"instance_type": "local_process"}, {"train": "s3://bucket/x"}, "channel 'train'"),
        ({"instance_type": "ml.p3.2xlarge"}, "s3://bucket/x", "unknown option of the backend 'ml'"),
        ({"dependencies": ["nothing"]}, None, "dependencies: 'nothing' does not exist"),
        ({"environment": {"A": "x" * 513}}, None, "has 513 characters"),
        ({"metric_definitions": [{"Name": f"m{n}", "Regex": "(x)"} for n in range(41)]}, None, "at most 40"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    arguments: dict[str, Any], inputs: Any, said: str, home: Path
) -> None:
    estimator = fake(**arguments)
    with pytest.raises(ValueError) as caught:
        estimator.fit(inputs)
    assert said in str(caught.value)
    assert jobs(home) == []
    assert estimator.latest_training_job is None


@pytest.mark.parametrize("logs", [True, "All", "Training", ["Training"], ["None", "All"]])
def test_logs_are_shown(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake(FakeOutcome(lines=["hello"])).fit(logs=logs)
    assert "[algo-1:rank 0] hello" in capsys.readouterr().out


@pytest.mark.parametrize("logs", [False, "None", []])
def test_logs_are_not_shown(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake(FakeOutcome(lines=["hello"])).fit(logs=logs)
    assert capsys.readouterr().out == ""


# --- warnings ---


def test_warnings_come_before_the_start_and_stay_with_the_job() -> None:
    estimator = TensorFlow(entry_point="train.py", source_dir="code", framework_version="1.13")
    with pytest.warns(PreflightWarning, match=r"framework_version='1.13'") as caught:
        job = estimator.fit(logs=False)
    assert caught[0].filename == __file__
    assert any("framework_version='1.13'" in warning for warning in job.warnings)


# --- hyperparameters ---


def test_an_image_with_its_own_entry_point_gets_plain_texts_as_from_the_sdk(tmp_path: Path) -> None:
    # The SDK 2.x: `{str(k): str(v)}` for an Estimator without a script (`_TrainingJob._get_train_args`).
    values = {"objective": "reg:squarederror", "eta": 0.2, "rounds": 50, "deep": True, "none": None, "text": "1e-3",
              "limit": float("inf"), "list": [1, "a"]}  # fmt: skip
    estimator = Estimator("xgboost:1.7", instance_type="local_fake", hyperparameters=values)
    assert estimator.hyperparameters() == {name: str(value) for name, value in values.items()}
    job = estimator.fit(wait=True, logs=False)
    assert job.describe()["HyperParameters"] == {name: str(value) for name, value in values.items()}
    again = Estimator.attach(job.name)
    assert again.hyperparameters() == estimator.hyperparameters()
    again.set_hyperparameters(text="2e-3")
    assert again.hyperparameters()["text"] == "2e-3"


def test_after_a_job_they_are_what_it_was_sent() -> None:
    estimator = fake(hyperparameters={"epochs": 3})
    job = estimator.fit(logs=False)
    assert estimator.hyperparameters() == job.describe()["HyperParameters"]
    assert json.loads(estimator.hyperparameters()["sagemaker_job_name"]) == job.name


def test_a_session_of_boto3_is_taken() -> None:
    import boto3

    estimator = fake(sagemaker_session=boto3.Session(region_name="eu-west-1"))
    job = estimator.fit(logs=False)
    assert job.describe()["HyperParameters"]["sagemaker_region"] == '"eu-west-1"'
