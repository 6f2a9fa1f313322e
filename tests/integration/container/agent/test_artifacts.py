"""``model.tar.gz`` and ``output.tar.gz``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import container
from container.agent.artifacts import collect
from container.contract.wire import Event, decode_line


class Job:
    """Hosts' trees, and what collecting them says."""

    def __init__(self, root: Path, hosts: int = 2) -> None:
        self.bases = [root / f"algo-{i + 1}" / "ml" for i in range(hosts)]
        for base in self.bases:
            (base / "model").mkdir(parents=True)
            (base / "output" / "data").mkdir(parents=True)
        self.output = root / "out" / "job" / "output"
        self.lines: list[bytes] = []

    def write(self, host: int, name: str, content: str = "x") -> Path:
        path = self.bases[host] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def collect(self) -> tuple[Path | None, Path | None]:
        model, output = collect(self.bases, str(self.output), tell=self.lines.append)
        return Path(model) if model else None, Path(output) if output else None

    @property
    def events(self) -> list[Event]:
        events = [decode_line(line) for line in self.lines]
        assert all(isinstance(event, Event) for event in events)
        return events  # type: ignore[return-value]

    @property
    def warnings(self) -> list[str]:
        return [event.data["message"] for event in self.events if event.kind == "warning"]


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
