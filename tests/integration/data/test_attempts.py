"""Whole jobs of several attempts, whose checkpoints are on S3."""

from __future__ import annotations

import warnings
from pathlib import Path

import clusters
import jobs_on_s3
import pytest
from s3_server import Bucket

from estimators import Estimator, PreflightWarning, TrainingJobError

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("way", jobs_on_s3.AGAIN)
def test_what_every_attempt_saves_is_in_s3(make: clusters.Make, s3: Bucket, way: str, hosts: int) -> None:
    jobs_on_s3.check_attempts(make, s3, way, hosts)


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
    one = jobs_on_s3.estimator(
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
    assert {"weights", "weights-algo-1"} == set(jobs_on_s3.unpacked(Path(job.model_data).read_bytes()))


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
