"""Real models, of tf_keras and of Keras 3; and real workers, of which one writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import launching
import pytest

pytestmark = pytest.mark.tensorflow

HERE = Path(__file__).parent
PASSED = "[0-9.]+ s"


def test_both_kerases(tmp_path: Path) -> None:
    """One after the other: the second is also shown what the first has saved."""
    for flavour in ("tf_keras", "keras"):
        done = subprocess.run(
            [sys.executable, str(HERE / "keras_checks.py"), flavour, str(tmp_path / flavour)],
            env={**os.environ, "PYTHONPATH": launching.PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("check_") >= 15, done.stdout


def on_two_workers(*command: str) -> list[Any]:
    """Run a program on two workers, with its number for RANK; returns what each prints as JSON."""
    with launching.reserved_ports(2) as ports:
        workers = [f"127.0.0.1:{port}" for port in ports]
        processes = [
            subprocess.Popen(
                [sys.executable, *(part.replace("RANK", str(rank)) for part in command)],
                env={
                    **os.environ,
                    "PYTHONPATH": launching.PYTHONPATH,
                    "TF_CONFIG": json.dumps(
                        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                    ),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said = [process.communicate(timeout=200)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in said]


def test_a_loop_without_keras(tmp_path: Path) -> None:
    """The Checkpointer is not told of the cluster: ``distributed.init()`` has been called."""
    command = (str(HERE / "by_hand.py"), str(tmp_path))
    assert on_two_workers(*command) == [{"first": 0, "w": [30 + rank] * 4} for rank in range(2)]
    assert on_two_workers(*command) == [{"first": 3, "w": [60] * 4}] * 2  # rank 0's, on both
    assert not (tmp_path / "1").exists()


def test_two_workers_of_which_one_writes(tmp_path: Path) -> None:
    """MultiWorkerMirroredStrategy with moving averages, whose usual reading is a collective operation."""
    results = on_two_workers(str(HERE / "two_workers.py"), "RANK", str(tmp_path))
    assert results[0] == results[1], results
    assert results[0]["epochs"] == [1, 2] and results[0]["step"] == 4
    assert not (tmp_path / "1").exists()
