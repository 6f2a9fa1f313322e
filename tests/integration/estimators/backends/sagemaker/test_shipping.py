"""What images can run, and how our toolkit and the user's code get into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from shipped_jobs import UPLOADED, spec

from container.agent.s3 import client
from container.contract import hyperparameters as codec
from container.toolkit.code.code import CodeError, materialize
from estimators.backends.images.toolkit import SKIPPED, package
from estimators.backends.sagemaker import packing, shipping
from estimators.backends.sagemaker.aws import Aws
from estimators.service.s3.server import S3Server


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        client.forget()
        (tmp_path / "s3" / "bucket").mkdir()
        yield tmp_path / "s3" / "bucket"
    client.forget()


def test_code_that_is_uploaded_is_the_code_that_a_container_fetches(bucket: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "train.py").write_text("print(1)\n")
    (source / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (source / "pkg" / "run.sh").chmod(0o700)
    (source / "link").symlink_to("pkg/run.sh")
    aws = Aws(region="us-east-1")
    given = spec()
    packing.upload(aws, given, source, shipping.Uploads(source=UPLOADED), lambda text: None)
    code = tmp_path / "ml" / "code"
    code.mkdir(parents=True)
    materialize(UPLOADED, code, "train.py")
    assert (code / "train.py").read_text() == "print(1)\n"
    assert os.access(code / "link", os.X_OK) and os.readlink(code / "link") == "pkg/run.sh"
    assert sorted(path.name for path in (tmp_path / "ml").iterdir()) == ["code"]
    first = (bucket / "job/source/sourcedir.tar.gz").read_bytes()
    packing.upload(aws, given, source, shipping.Uploads(source=UPLOADED), lambda text: None)
    assert (bucket / "job/source/sourcedir.tar.gz").read_bytes() == first
    with pytest.raises(CodeError, match="there is no such object"):
        materialize("s3://bucket/nothing.tar.gz", tmp_path / "ml" / "other", "train.py")


@pytest.mark.leaves("folders")
def test_an_image_without_our_toolkit_trains_with_it(tmp_path: Path) -> None:
    """The starter for real: a Python that knows nothing of us, and the files that SageMaker puts there."""
    channel = tmp_path / "ml" / "input" / "data" / "fleetfit"
    config = tmp_path / "ml" / "input" / "config"
    for folder in (channel, config, tmp_path / "source"):
        folder.mkdir(parents=True)
    (tmp_path / "source" / "train.py").write_text(
        "import os, container.distributed\nassert os.environ['SM_CHANNELS'] == '[]'\nprint('trained', flush=True)\n"
    )
    packing.pack(tmp_path / "source", channel / "sourcedir.tar.gz")
    packing.pack(package(), channel / "toolkit.tar.gz", name="container", skipped=SKIPPED)
    (channel / "start.py").write_bytes((package() / "toolkit" / "bootstrap.py").read_bytes())
    with tarfile.open(channel / "toolkit.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "__pycache__" in name]
    parameters = codec.encode(
        {codec.PROGRAM: "train.py", codec.SUBMIT_DIRECTORY: str(channel / "sourcedir.tar.gz"), "fleetfit_x": 1}
    )
    files = {
        "hyperparameters.json": parameters,
        "resourceconfig.json": {"current_host": "algo-1", "hosts": ["algo-1"]},
        "inputdataconfig.json": {"fleetfit": {"TrainingInputMode": "File"}},
    }
    for name, content in files.items():
        (config / name).write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-I", str(channel / "start.py")],
        env={"SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), "PATH": os.environ["PATH"], "TMPDIR": os.environ["TMPDIR"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[algo-1:rank 0] trained\n" in done.stdout
    assert (tmp_path / "ml" / "output" / "success").exists()

    # A damaged toolkit is said where SageMaker looks.
    (channel / "toolkit.tar.gz").write_bytes(b"no")
    done = subprocess.run(
        [sys.executable, "-I", str(channel / "start.py")], env={"SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}, timeout=60
    )
    assert done.returncode == 1
    assert "could not be unpacked" in (tmp_path / "ml" / "output" / "failure").read_text()
