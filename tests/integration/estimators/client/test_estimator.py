"""Estimator and TensorFlow on real processes: fit, and attach from another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimators import PreflightWarning, TensorFlow
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


def test_a_real_job(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="code",
        instance_count=2,
        hyperparameters={"text": 'it\'s "$HOME"\n ü', "empty": "", "none": None, "flag": True, "n": 3},
        environment={"GREETING": "hello you"},
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        framework_version="1.13",
        base_job_name="real",
        model_dir=False,
    )
    with pytest.warns(PreflightWarning, match=r"framework_version='1.13'") as caught:
        job = estimator.fit(logs="All")
    assert caught[0].filename == __file__
    assert any("framework_version='1.13'" in warning for warning in job.warnings)
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
    assert estimator.hyperparameters() == job.describe()["HyperParameters"], "after a job they are what it was sent"
    assert json.loads(estimator.hyperparameters()["sagemaker_job_name"]) == job.name

    program = (
        "from estimators import TensorFlow\n"
        f"estimator = TensorFlow.attach({job.name!r})\n"
        "job = estimator.latest_training_job\n"
        "print(job.name, str(job.status), *job.metrics()['value'].tolist(), estimator.base_job_name)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/").stdout
    assert said.split() == [job.name, "Completed", "0.25", "0.25", "real"]


def test_a_shell_script_runs_under_the_next_name_that_is_free(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("code/run.sh").write_text('echo "shell $# $2"\n')
    estimator = TensorFlow(entry_point="run.sh", source_dir="code", model_dir=False, hyperparameters={"x": "a b"})
    estimator.fit(job_name="taken")
    assert "[algo-1:rank 0] shell 2 a b" in capsys.readouterr().out
    names = iter(["taken", "taken", "free"])
    monkeypatch.setattr(naming, "job_name", lambda base: next(names))
    assert estimator.fit(logs=False).name == "free"
