"""What fit() checks on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from container.contract.hyperparameters import encode
from container.contract.strategies import MPI, ElasticHorovod, ElasticTorchDistributed
from container.launchers import horovod_builds
from estimators.client import checks, source
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.job.inputs import TrainingInput, parse_inputs
from estimators.job.request import CheckpointConfig, OutputConfig, Resources, RunOptions, TrainingJobSpec
from estimators.records.record import JobRecord


def spec(tmp_path: Path, inputs: Any = None, **members: Any) -> TrainingJobSpec:
    given = {"output": OutputConfig(path=str(tmp_path)), "resources": Resources(instance_type="local_process")}
    return TrainingJobSpec(name="job", inputs=parse_inputs(inputs), **{**given, **members})


def test_a_channel_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        checks.check_local(spec(tmp_path, {"train": tmp_path / "digit"}))
    assert f"channel 'train': '{tmp_path}/digit' does not exist. Did you mean '{tmp_path}/digits'?" in str(caught.value)
    with pytest.raises(ConfigurationError, match="'train'"):
        checks.check_local(spec(tmp_path, {"train": f"file://{tmp_path}/nothing/at/all"}))


def test_folders_and_files_are_channels(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    checks.check_local(spec(tmp_path, {"train": tmp_path, "file": tmp_path / "file", "uri": f"file://{tmp_path}"}))


def test_a_job_that_saves_at_the_same_place_is_named_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    mine = spec(tmp_path, checkpoint=CheckpointConfig(uri="s3://bucket/run/"))
    other = JobRecord.create("other")
    other.write_request({"TrainingJobName": "other", "CheckpointConfig": {"S3Uri": "s3://bucket/run"}})
    told = checks.shared_checkpoints(mine)
    assert told is not None and "the job 'other' has not ended" in told and "fleetfit wait other" in told
    other.write_request({"TrainingJobName": "other", "CheckpointConfig": {"S3Uri": f"file://{tmp_path}/run"}})
    here = spec(tmp_path, checkpoint=CheckpointConfig(uri=f"{tmp_path}/jobs/../run/"))
    assert checks.shared_checkpoints(here) is not None
    other.write_request({"TrainingJobName": "other", "CheckpointConfig": {"S3Uri": "s3://bucket/run"}})
    (tmp_path / "jobs" / "broken").mkdir()
    (tmp_path / "jobs" / "broken" / "lock").mkdir()
    assert checks.shared_checkpoints(spec(tmp_path, checkpoint=CheckpointConfig(uri="s3://bucket/run-2"))) is None
    assert checks.shared_checkpoints(spec(tmp_path)) is None
    other.release()
    assert checks.shared_checkpoints(mine) is None


def test_a_pipe_is_no_channel(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="is neither a folder nor a file"):
        checks.check_local(spec(tmp_path, {"train": tmp_path / "pipe"}))


def test_what_an_elastic_job_cannot_have_is_named_with_its_strategy(tmp_path: Path) -> None:
    given = encode(ElasticTorchDistributed(max_hosts=2).to_hyperparameters())
    piped = spec(tmp_path, {"train": TrainingInput(str(tmp_path), input_mode="Pipe")}, hyperparameters=given)
    with pytest.raises(UnsupportedError, match="'train': Pipe mode is not possible with"):
        checks.check_elastic(piped)
    resources = Resources(instance_type="local_process", instance_count=3)
    three = spec(tmp_path, hyperparameters=given, resources=resources)
    with pytest.raises(ConfigurationError, match=r"min_hosts=1 and max_hosts=2 of ElasticTorchDistributed"):
        checks.check_elastic(three)
    with pytest.raises(UnsupportedError, match=r"ElasticTorchDistributed needs hosts that can be added and removed"):
        service = Resources(instance_type="ml.m5.large", instance_count=2)
        checks.check_elastic(spec(tmp_path, hyperparameters=given, resources=service))


def test_a_queue_is_refused_where_the_hosts_are_other_machines(tmp_path: Path) -> None:
    options = RunOptions(queue="default")
    checks.check_queue(spec(tmp_path), options)
    elsewhere = spec(tmp_path, resources=Resources(instance_type="ssh"))
    with pytest.raises(UnsupportedError, match="a queue is only for jobs on this machine"):
        checks.check_queue(elsewhere, options)


def test_outputs_that_cannot_be_written_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match=r"output_path=.*cannot be written: .* is not a folder"):
        checks.check_local(spec(tmp_path, output=OutputConfig(path=str(tmp_path / "file" / "below"))))
    with pytest.raises(ConfigurationError, match=r"output_path='/proc/nowhere/x' cannot be written: '/proc'"):
        checks.check_local(spec(tmp_path, output=OutputConfig(path="/proc/nowhere/x")))
    monkeypatch.setenv("FLEETFIT_HOME", "/proc/nowhere")
    with pytest.raises(ConfigurationError, match="FLEETFIT_HOME='/proc/nowhere' cannot be written"):
        checks.check_local(spec(tmp_path, output=OutputConfig(path="file:///proc/nowhere/jobs")))
    with pytest.raises(ConfigurationError, match="checkpoint_s3_uri='/sys/nowhere' cannot be written"):
        checks.check_local(spec(tmp_path, checkpoint=CheckpointConfig(uri="/sys/nowhere")))


def test_nothing_is_left_by_looking(tmp_path: Path) -> None:
    checks.check_local(spec(tmp_path, output=OutputConfig(path=str(tmp_path / "a" / "b"))))
    assert list(tmp_path.iterdir()) == []


def test_file_systems_without_nameless_files_are_tried_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without_tmpfile(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", without_tmpfile)
    checks.check_local(spec(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_other_schemes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="output_path='gs://bucket/x'"):
        checks.check_local(spec(tmp_path, output=OutputConfig(path="gs://bucket/x")))


def test_other_checkpoint_folders_are_refused(tmp_path: Path) -> None:
    for path in (None, "/opt/ml/checkpoints", "/opt/ml/checkpoints/"):
        checks.check_local(spec(tmp_path, checkpoint=CheckpointConfig(uri=str(tmp_path), local_path=path)))
    with pytest.raises(UnsupportedError, match="SM_CHECKPOINT_DIR"):
        checks.check_local(spec(tmp_path, checkpoint=CheckpointConfig(uri=str(tmp_path), local_path="/data/ckpt")))


@pytest.mark.parametrize(
    ("wanted", "warns"), [("2.21", False), ("2.21.0", False), ("2", False), ("1.13", True), ("2.2", True)]
)
def test_another_tensorflow_is_warned_about(wanted: str, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "installed_version", lambda framework: "2.21.0")
    found = checks.version_warnings(wanted, None)
    assert bool(found) is warns
    assert all(wanted in text and "2.21.0" in text for text in found)


def test_the_installed_tensorflow_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    for name in ("tensorflow_estimator-2.1.0.dist-info", "tensorflow_cpu-2.21.0.dist-info"):
        (site / name).mkdir(parents=True)
        distribution, _, version = name.removesuffix(".dist-info").partition("-")
        (site / name / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(site)])
    assert checks.installed_version("tensorflow") == "2.21.0"


def test_an_interrupted_installation_is_no_installed_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow-2.16.1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert checks.installed_version("tensorflow") is None
    assert checks.version_warnings("2.16", None) == []


def test_another_python_is_warned_about() -> None:
    major, minor = sys.version_info[:2]
    assert checks.version_warnings(None, f"py{major}{minor}") == []
    assert checks.version_warnings(None, f"py{major}") == []
    assert checks.version_warnings(None, "py27")


HOROVOD_OF_TORCH = (
    r"for PyTorch, but Horovod is built for TensorFlow only: run `fleetfit install horovod tensorflow torch`"
)
NEITHER = "import horovod.torch\nimport horovod.tensorflow.keras\n"


@pytest.mark.parametrize(
    ("text", "framework", "built", "refusal"),
    [
        ("import horovod.torch as hvd\n", "tensorflow", {"tensorflow"}, HOROVOD_OF_TORCH),
        ("import os\nfrom horovod.torch import elastic\n", "torch", {"tensorflow"}, HOROVOD_OF_TORCH),
        ("from horovod import torch\n", "torch", {"tensorflow"}, HOROVOD_OF_TORCH),
        (NEITHER, "torch", {"torch"}, "needs Horovod for TensorFlow, but Horovod is built for PyTorch only"),
        ("from container import checkpoint, distributed\n", "torch", {"tensorflow"}, HOROVOD_OF_TORCH),
        ("import horovod.torch as hvd\n", "torch", {"tensorflow", "torch"}, None),
        ("import horovod.torch as hvd\n", "torch", set(), None),
        ("from container import distributed\n", "tensorflow", {"tensorflow"}, None),
        ("from container import checkpoint  # not distributed\n", "torch", {"tensorflow"}, None),
        ("try:\n    import horovod.torch\nexcept ImportError:\n    pass\n", "torch", {"tensorflow"}, None),
        ('"""Usage:\n\nimport horovod.torch as hvd\n"""\n', "torch", {"tensorflow"}, None),
        ("import horovod.torch as\n", "torch", {"tensorflow"}, None),
    ],
)
@pytest.mark.parametrize("strategy", [MPI(), ElasticHorovod()], ids=["mpi", "elastic"])
def test_a_script_for_what_horovod_is_not_built_for_is_refused(
    text: str,
    framework: str,
    built: set[str],
    refusal: str | None,
    strategy: MPI | ElasticHorovod,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(horovod_builds, "built_for", lambda folders: frozenset(built))
    (tmp_path / "pkg" / "run").mkdir(parents=True)
    for name in ("train.py", "pkg/train.py", "pkg/run/__main__.py"):
        (tmp_path / name).write_text(text)
    (tmp_path / "beside.py").write_text("import horovod.torch, horovod.tensorflow\n")  # of another job
    job = spec(tmp_path, hyperparameters=encode(strategy.to_hyperparameters()))

    def check(program: str) -> None:
        checks.check_horovod(job, source.resolve(program, str(tmp_path)), framework, sys.executable)

    for program in ("train.py", "pkg.train", "pkg.run"):
        with pytest.raises(UnsupportedError, match=refusal) if refusal else contextlib.nullcontext():
            check(program)
    (tmp_path / "requirements.txt").write_text("horovod\n")
    check("train.py")
    (tmp_path / "requirements.txt").unlink()
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    check("train.py")


def test_a_script_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(:\n    pass\n")
    with pytest.raises(
        ConfigurationError, match=r'compile, so nothing was started:\n  File "train.py", line 1\n    def'
    ):
        checks.check_syntax(source.resolve("train.py", str(tmp_path)))
    (tmp_path / "train.py").write_text("print('fine')\n")
    checks.check_syntax(source.resolve("train.py", str(tmp_path)))
