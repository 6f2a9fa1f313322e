"""``model.tar.gz`` and ``output.tar.gz``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from host_trees import Job

import container
from container.contract.wire import Event, decode_line


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_disk_that_is_full_leaves_no_half(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (job.bases[0] / "model" / "big").write_bytes(os.urandom(1 << 20))
    job.output.mkdir(parents=True)
    (job.output / "model.tar.gz").write_bytes(b"an older one")
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from container import agent\n"
        "sys.exit(agent.main(sys.argv[1:]))\n"
    )
    argv = ["collect", "--base-dir", str(job.bases[0]), "--output", str(job.output)]
    env = {"PYTHONPATH": str(Path(container.__file__).parent.parent), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "File too large" in line
    assert str(job.bases[0] / "model") in line
    assert os.listdir(job.output) == ["model.tar.gz"]
    assert (job.output / "model.tar.gz").read_bytes() == b"an older one"


def test_the_command_line(job: Job) -> None:
    job.write(0, "model/x")
    program = Path(container.__file__).parent / "__main__.py"
    bases = [word for base in job.bases for word in ("--base-dir", str(base))]
    argv = [sys.executable, "-I", str(program), "agent", "collect", *bases, "--output", str(job.output)]
    done = subprocess.run(argv, capture_output=True, check=True, cwd="/")
    (line,) = done.stdout.splitlines(keepends=True)
    event = decode_line(line)
    assert isinstance(event, Event)
    assert event.data == {"model": str(job.output / "model.tar.gz")}
