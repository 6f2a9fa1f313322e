"""Whole jobs of several attempts, whose checkpoints are on S3."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from jobs_on_s3 import estimator, said, unpacked
from s3_server import Bucket

from estimators import ElasticTorchDistributed, Estimator, PreflightWarning, TensorFlow, TrainingJobError
from estimators.faults import Interrupt

#: Each host writes a file in each attempt, and another into its intermediate output; FAILS attempts end badly.
SCRIPT = """
number = len(list(checkpoints.glob(f"{host}-*")))
(checkpoints / f"{host}-{number}").write_text("x" * (number + 1))
(pathlib.Path(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]) / f"{host}-{number}").write_text("x")
while len(list(checkpoints.glob(f"*-{number}"))) < len(json.loads(os.environ["SM_HOSTS"])):
    time.sleep(0.01)
print("began", number, flush=True)
if number < int(os.environ["FAILS"]):
    time.sleep(60 if os.environ["FAILS_BY"] == "interruption" else 0)
    sys.exit(3)
"""


pytestmark = pytest.mark.usefixtures("home")


WAYS: dict[str, dict[str, Any]] = {
    "retry": {"max_retry_attempts": 2},
    "interruption": {
        "use_spot_instances": True,
        "max_run": 600,
        "max_wait": 900,
    },
    "resume": {},
    "elastic": {"distribution": ElasticTorchDistributed(max_restarts=2)},
}


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("way", WAYS)
def test_what_every_attempt_saves_is_in_s3(way: str, hosts: int, s3: Bucket, tmp_path: Path) -> None:
    fails = 1 if way in ("interruption", "resume") else 2
    one = estimator(
        tmp_path,
        SCRIPT,
        Estimator if way == "elastic" else TensorFlow,
        instance_count=hosts,
        checkpoint_s3_uri=s3.uri("ck"),
        output_path=s3.uri("out"),
        environment={"FAILS": str(fails), "FAILS_BY": way},
        **WAYS[way],
    )
    faults = Interrupt("algo-1", 0, at_line="began 0", return_after_s=0.5) if way == "interruption" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        with contextlib.suppress(TrainingJobError):
            one.fit(logs=False, faults=faults)
    job = one.latest_training_job
    if way == "resume":
        assert job.status == "Failed"
        job.resume(logs=False)
    assert job.status == "Completed", job.describe().get("FailureReason")
    attempts = {f"algo-{host + 1}-{number}" for host in range(hosts) for number in range(fails + 1)}
    # Of an attempt that is interrupted without notice a host may be ended with its file, before it has said so.
    assert set(said(job, "began")) == {str(number) for number in range(fails + 1)}
    names = s3.names()
    assert {name.removeprefix("ck/") for name in names if name.startswith("ck/")} == attempts
    assert {Path(name).name for name in names if "/intermediate/" in name} == attempts
    assert not [line.text for line in job.log_lines() if "could not" in line.text]


def test_a_script_has_folders_of_its_own_by_sagemakers_names(tmp_path: Path) -> None:
    """It may remove and rename the folder of its checkpoints, and /opt/ml in its arguments is its own tree."""
    script = """
import argparse, shutil
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
(pathlib.Path(parser.parse_args().output_dir) / "weights").write_text("w")
(pathlib.Path(os.environ["EXTRA"].partition("=")[2]) / "notes").write_text("n")
assert not checkpoints.is_symlink()
assert not list(checkpoints.glob("*")), "what was removed has come back"
if not list(checkpoints.parent.glob("*.bak")):
    (checkpoints / "step-1").write_text("1")
    os.rename(checkpoints, f"{checkpoints}.bak")
    os.makedirs(checkpoints)
    sys.exit(3)
shutil.rmtree(checkpoints)
os.makedirs(checkpoints)
(pathlib.Path(os.environ["CKPT"]) / "step-2").write_text("2")
"""
    one = estimator(
        tmp_path,
        script,
        max_retry_attempts=2,
        hyperparameters={"output_dir": "/opt/ml/model"},
        environment={"EXTRA": "dir=/opt/ml/output/data", "CKPT": "/opt/ml/checkpoints"},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        job = one.fit(logs=False)
    assert job.status == "Completed"
    assert (Path(f"{job.record.checkpoints_dir}.bak") / "step-1").read_text() == "1"
    assert (job.record.checkpoints_dir / "step-2").read_text() == "2"
    assert {"weights", "weights-algo-1"} == set(unpacked(Path(job.model_data).read_bytes()))


def test_a_resumed_function_returns_the_value_of_its_last_attempt(s3: Bucket, tmp_path: Path) -> None:
    def train(mark: str) -> int:
        import os

        if os.path.exists(mark):
            return 1
        open(mark, "x").close()
        raise ValueError("the first attempt")

    mark = {"mark": str(tmp_path / "mark")}
    one = Estimator(entry_point=train, hyperparameters=mark, output_path=s3.uri("out"))
    with pytest.raises(TrainingJobError) as failed:
        one.fit(logs=False)
    assert isinstance(failed.value.__cause__, ValueError)
    assert one.latest_training_job.resume(logs=False).value() == 1
