"""Jobs on many hosts, which two processes play: what is said to the supervisor is said by the real protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness, scale
from estimators import TrainingJob
from estimators.job import fleets

HOSTS = 64


@pytest.fixture
def sockets(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    plugin = str(harness.HERE / "light" / "plugin")
    monkeypatch.syspath_prepend(plugin)
    monkeypatch.setenv("PYTHONPATH", plugin)
    fleets.added.cache_clear()
    with scale.players(tmp_path) as paths:
        yield paths
    fleets.added.cache_clear()


#: A process of its own starts the job: a test's may have more files open than this limit allows.
_START = """
import json, resource, sys
from pathlib import Path
from benchmarks import scale

folder, hosts, limit, sockets = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(scale.fit(Path(folder), sockets, hosts, lines=20).name)
"""


def fit_with_few_descriptors(folder: Path, sockets: list[str]) -> TrainingJob:
    """Start a job under a limit that is to its hosts as 1,024, the usual one, is to a thousand of them."""
    argv = [sys.executable, "-c", _START, str(folder), str(HOSTS), str(HOSTS), json.dumps(sockets)]
    started = subprocess.run(argv, cwd=harness.HERE.parent, stdout=subprocess.PIPE, text=True, check=True)
    return TrainingJob.attach(started.stdout.split()[-1])


def test_every_line_of_every_host_is_kept_in_order(sockets: list[str], tmp_path: Path) -> None:
    job = fit_with_few_descriptors(tmp_path, sockets)
    job.wait(logs=False)
    printed: dict[int | None, list[str]] = {}
    for line in job.log_lines():
        printed.setdefault(line.rank, []).append(line.text)
    printed.pop(None, None)
    assert sorted(rank for rank in printed if rank is not None) == list(range(HOSTS * 8))
    expected = [f"line {number}" for number in range(20)]
    assert all(lines == expected for lines in printed.values())
