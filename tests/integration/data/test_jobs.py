"""Whole jobs whose data, outputs and checkpoints are on S3."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path

import clusters
import pytest
from jobs_on_s3 import estimator, said, unpacked
from s3_server import Bucket, Faults
from waiting import until

from estimators import TrainingJobError
from estimators.client import debugging
from estimators.inputs import TrainingInput
from estimators.job.errors import ConfigurationError
from estimators.records.record import job_names


@pytest.fixture(autouse=True)
def soon(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_CHECKPOINT_SYNC_SECONDS", "0.1")


fit = functools.partial(clusters.fit, logs=False)


def digests(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.landing
def test_inputs_and_outputs(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    made = {f"part-{number}": os.urandom(200_000) for number in range(5)}
    for name, content in made.items():
        s3.put(f"train/{name}", content)
    s3.put("labels.csv", b"a,b")
    faults.cut(after=50_000, times=2, key="part-")
    faults.unavailable(times=2, method="PUT", key="model.tar.gz")
    one = estimator(tmp_path, "", instance_count=2, output_path=s3.uri("out/"))
    job = fit(
        one,
        {
            "train": TrainingInput(s3.uri("train"), distribution="ShardedByS3Key"),
            "labels": s3.uri("labels.csv"),
        },
        job_name="both-ways",
    )
    first, second = (json.loads(text) for text in sorted(said(job, "found"), key=lambda t: -len(t)))
    assert {**first["train"], **second["train"]} == digests(made)
    assert {len(first["train"]), len(second["train"])} == {3, 2}
    assert first["labels"] == second["labels"] == digests({"labels.csv": b"a,b"})
    assert faults.left == 0
    assert any(
        "channel 'train' ████████████████████ 100%  5 objects, 1.0 MB down" in line.text for line in job.log_lines()
    )
    assert job.model_data == s3.uri("out/both-ways/output/model.tar.gz")
    assert set(unpacked(s3.get("out/both-ways/output/model.tar.gz"))) == {"weights-algo-1", "weights-algo-2"}
    assert unpacked(s3.get("out/both-ways/output/output.tar.gz")) == {"notes": b"text"}
    assert not (job.record.tree("algo-1").channel("train")).exists()  # its bytes are in the cache
    # No secret is anywhere in the record.
    secret = s3.server.secret.encode()
    assert not [path for path in job.record.path.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_a_failed_upload_fails_the_job(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    faults.unavailable(times=1000, method="PUT", status=403)
    with pytest.raises(
        TrainingJobError, match=r"the upload failed: .*denies access.*The unpacked files are in"
    ) as caught:
        fit(estimator(tmp_path, "", output_path=s3.uri("out")))
    assert (caught.value.job.record.tree("algo-1").model / "weights-algo-1").exists()
    with pytest.raises(
        TrainingJobError, match=r"upload of the checkpoints failed: 's3://bucket-.*denies access"
    ) as caught:
        fit(estimator(tmp_path, "save(1)", checkpoint_s3_uri=s3.uri("ck")))
    assert (caught.value.job.record.checkpoints_dir / "checkpoint-00000001-step-1").is_dir()
    assert s3.names() == []


def test_checkpoints_go_up_while_it_trains_and_come_down(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    script = """
save(1)
(checkpoints / "half").write_text("x")
(checkpoints / ".hidden").write_text("x")
until = time.monotonic() + 60
while not (checkpoints / "go").exists():
    if time.monotonic() > until: sys.exit("nobody said go")
    time.sleep(0.02)
save(2)
"""
    one = estimator(tmp_path, script, checkpoint_s3_uri=s3.uri("ck"))
    job = fit(one, wait=False)
    until(lambda: "ck/checkpoint-00000001-step-1/manifest.json" in s3.names())
    assert job.status == "InProgress"
    (job.record.checkpoints_dir / "go").touch()
    job.wait(logs=False)
    whole = [f"checkpoint-0000000{n}-step-{n}/{name}" for n in (1, 2) for name in ("manifest.json", "tensors")]
    assert [key for key in s3.names() if key.startswith("ck/")] == sorted(
        f"ck/{name}" for name in (*whole, ".hidden", "go", "half")
    )
    assert said(job, "restored") == ["[]"]
    # One whose upload was cut stays where it is.
    s3.put("ck/checkpoint-00000003-step-3/tensors", b"half")
    # Intermediate output that cannot go up is said, and fails nothing.
    faults.unavailable(times=1000, method="PUT", status=403, key="intermediate")
    script = 'save(4)\npathlib.Path(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"], "a").write_text("1")'
    two = estimator(tmp_path, script, checkpoint_s3_uri=s3.uri("ck/"), output_path=s3.uri("out"))
    again = fit(two)
    assert any("the upload of the intermediate output failed" in line.text for line in again.log_lines())
    assert json.loads(said(again, "restored")[0]) == sorted([*whole, ".hidden", "go", "half"])
    assert any("checkpoint-00000003-step-3 is incomplete" in line.text for line in again.log_lines())
    assert "ck/checkpoint-00000004-step-4/manifest.json" in s3.names()
    assert "ck/checkpoint-00000001-step-1/tensors" in s3.names()  # nothing is deleted
    uploads = [seen.path for seen in faults.requests("PUT", "checkpoint-00000001")]
    assert len(uploads) == 2  # not again by the second job


#: Writes intermediate output, and goes on when it is told to.
INTERMEDIATE = """
place = pathlib.Path(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"])
(place / "plots").mkdir()
(place / "plots" / "a").write_text("1")
until = time.monotonic() + 60
while not (checkpoints / "go").exists():
    if time.monotonic() > until: sys.exit("nobody said go")
    time.sleep(0.02)
(place / "plots" / "a").write_text("2")
(place / f"last-{host}").write_text("x")
"""


def test_intermediate_output_comes_while_the_job_runs(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    one = estimator(tmp_path, INTERMEDIATE, instance_count=2, output_path=s3.uri("out"))
    job = fit(one, wait=False, job_name="between")
    key = "out/between/output/intermediate/plots/a"
    until(lambda: key in s3.names())
    assert job.status == "InProgress"
    job.record.checkpoints_dir.joinpath("go").touch()
    job.wait(logs=False)
    assert (s3.folder / key).read_text() == "2"
    assert {f"out/between/output/intermediate/last-algo-{n}" for n in (1, 2)} <= set(s3.names())


def test_what_is_refused_before_the_start(s3: Bucket, tmp_path: Path) -> None:
    s3.put("train/a", b"x")
    s3.put("m", json.dumps([{"prefix": s3.uri("train/")}, "a", "b"], indent=0).replace("{\n", "{").encode())
    for inputs, arguments, message in (
        (s3.uri("nothing"), {}, r"channel 'training': 's3://.*/nothing': no object has a key"),
        (
            {"m": TrainingInput(s3.uri("m"), s3_data_type="ManifestFile")},
            {},
            r"channel 'm': .*line 5: .*no such obj",
        ),
        (None, {"output_path": f"s3://{s3.name}x/out"}, "output_path: .*there is no bucket"),
        (None, {"checkpoint_s3_uri": f"s3://{s3.name}x/out"}, "checkpoint_s3_uri: .*there is no bucket"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fit(estimator(tmp_path, "", **arguments), inputs)
    assert job_names() == []


def test_what_the_foreground_does_not_do(s3: Bucket, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    s3.put("train/a", b"a")
    one = estimator(tmp_path, "", instance_count=1, output_path=s3.uri("out/"), checkpoint_s3_uri=s3.uri("saved/"))
    with pytest.raises(ConfigurationError, match="--debug does not support FastFile mode from S3"):
        debugging.run(one._draft({"train": TrainingInput(s3.uri("train/"), input_mode="FastFile")}, None))
    assert job_names() == []
    assert debugging.run(one._draft(None, None))[1] == 0
    said = capfd.readouterr().err
    for place in ("out/", "saved/"):
        assert f"--debug: nothing is uploaded to {s3.uri(place)} or downloaded from there" in said
