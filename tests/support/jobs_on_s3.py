"""What the tests of whole jobs on S3 share."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimators import RunOptions, TensorFlow

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
    return TensorFlow(
        **{
            "entry_point": "train.py",
            "source_dir": str(code),
            "instance_count": 1,
            "instance_type": "local_process",
            "model_dir": False,
            "run_options": RunOptions(),
            **arguments,
        }
    )


def said(job: Any, word: str) -> list[str]:
    """What the ranks printed behind a word."""
    return [line.text[len(word) + 1 :] for line in job.log_lines() if line.text.startswith(f"{word} ")]


def unpacked(content: bytes) -> dict[str, bytes]:
    """The files of a tar.gz."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        members = [member for member in tar.getmembers() if member.isreg()]
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


Run = Callable[..., Any]
