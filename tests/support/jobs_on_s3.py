"""What the tests of whole jobs on S3 share."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clusters
import pytest
import s3_server

from estimators import ElasticTorchDistributed, Estimator, TensorFlow
from estimators.faults import Interrupt

#: Says what it reads, and leaves a model, an output and a checkpoint in the Checkpointer's form.
SCRIPT = """
import hashlib, json, os, pathlib, sys, time
found = {}
for channel in json.loads(os.environ["SM_CHANNELS"]):
    root = pathlib.Path(os.environ[f"SM_CHANNEL_{channel.upper()}"])
    found[channel] = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*")) if path.is_file()
    }
print("found", json.dumps(found))
checkpoints = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
print("restored", json.dumps(sorted(str(p.relative_to(checkpoints)) for p in checkpoints.rglob("*") if p.is_file())))
host = os.environ["SM_CURRENT_HOST"]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"weights-{host}").write_bytes(b"w" * 1000)
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "notes").write_text("text")

def save(number):
    staging = checkpoints / f".staging-{number}"
    staging.mkdir()
    (staging / "tensors").write_bytes(b"t" * 5000)
    (staging / "manifest.json").write_text("{}")
    staging.rename(checkpoints / f"checkpoint-{number:08}-step-{number}")
"""


def estimator(folder: Path, script: str, **arguments: Any) -> TensorFlow:
    """An estimator whose code is a text."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(SCRIPT + script)
    given = {"instance_count": 1, "instance_type": "local_process", **arguments}
    return TensorFlow(entry_point="train.py", source_dir=str(code), model_dir=False, **given)


def said(job: Any, word: str) -> list[str]:
    """What the ranks printed behind a word."""
    return [line.text[len(word) + 1 :] for line in job.log_lines() if line.text.startswith(f"{word} ")]


def unpacked(content: bytes) -> dict[str, bytes]:
    """The files of a tar.gz."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        members = [member for member in tar.getmembers() if member.isreg()]
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


Run = Callable[..., Any]

#: Each host writes a file and a folder in each attempt, and into its intermediate output; FAILS attempts end badly.
_ATTEMPTS = """
import json, os, pathlib, signal, sys
import aid
host = os.environ["SM_CURRENT_HOST"]
checkpoints = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
number = len(list(checkpoints.glob(f"{host}-*")))
print("began", number, *(path.name for path in checkpoints.iterdir() if path.is_dir()), flush=True)
(checkpoints / f"{host}-{number}").write_text("x" * (number + 1))
(checkpoints / f"empty-{host}-{number}").mkdir()
(pathlib.Path(os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]) / f"{host}-{number}").write_text("x")
aid.mark(f"wrote-{host}-{number}")
for other in json.loads(os.environ["SM_HOSTS"]):
    aid.wait_for(f"wrote-{other}-{number}")
print("wrote", number, "on", host, flush=True)
if number < int(os.environ["FAILS"]) and os.environ["FAILS_BY"] == "interruption":
    signal.pause()
sys.exit(3 if number < int(os.environ["FAILS"]) else 0)
"""


#: Ways to begin again.
AGAIN = ("retry", "interruption", "resume", "elastic")


def again(*always: str) -> list[Any]:
    """Ways to begin again, and on how many hosts: those that are tested always, on two; the soak tests the rest.

    Processes of this machine do it always in all of these ways (``tests/integration/data/test_attempts.py``).
    """
    return [
        pytest.param(way, hosts, marks=[] if hosts == 2 and way in always else [pytest.mark.soak])
        for way in AGAIN
        for hosts in (1, 2)
    ]


def check_attempts(make: clusters.Make, s3: s3_server.Bucket, way: str, count: int) -> None:
    """What each host saves in each attempt, wherever they are, is in S3 and with the next attempt."""
    fails = 2 if way in ("retry", "elastic") else 1
    restarts = {"kind": Estimator, "distribution": ElasticTorchDistributed(max_restarts=2)} if way == "elastic" else {}
    spot = {"use_spot_instances": True, "max_run": 600, "max_wait": 900} if way == "interruption" else {}
    estimator = make(
        _ATTEMPTS,
        hosts=count,
        checkpoint_s3_uri=s3.uri("ck"),
        output_path=s3.uri("out"),
        environment={"FAILS": str(fails), "FAILS_BY": way},
        max_retry_attempts=2 if way == "retry" else None,
        **spot,
        **restarts,
    )
    faults = Interrupt("algo-1", 0, at_line="wrote 0 on algo-1", return_after_s=0.5) if spot else None
    job = clusters.fit(estimator, wait=False, faults=faults)
    clusters.await_terminal(job)
    if way == "resume":
        assert job.status == "Failed"
        job.resume(logs=False)
    assert job.status == "Completed", job.describe().get("FailureReason")
    hosts, numbers = [f"algo-{number + 1}" for number in range(count)], range(fails + 1)
    files = {f"{host}-{number}" for host in hosts for number in numbers}
    names = {entry["Key"] for entry in s3.client.list_objects_v2(Bucket=s3.name)["Contents"]}
    saved = {name.removeprefix("ck/") for name in names if name.startswith("ck/")}
    assert saved == {*files, *(f"empty-{name}/" for name in files)}
    uploaded = {Path(name).name for name in names if "/intermediate/" in name}
    assert not uploaded ^ files, (files - uploaded, uploaded - files)
    began = [line.split() for line in said(job, "began")]
    assert sorted(number for number, *_ in began) == sorted(count * [str(number) for number in numbers])
    for number, *empty in began:
        assert {f"empty-{host}-{earlier}" for host in hosts for earlier in range(int(number))} <= {*empty}
    assert not [line.text for line in job.log_lines() if "could not" in line.text]
