"""What the single benchmarks make of their numbers, without running any of them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import allreduce, harness, peers, steps
from benchmarks.harness import Numbers


def test_one_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is a process of its own, which does not know these names, and fails."""
    monkeypatch.setattr(program, "BENCHMARKS", dict.fromkeys(("first", "second"), ("none", "none")))
    assert program.main(["all"]) == 1
    said = capfd.readouterr().err
    assert "unknown benchmark 'first'" in said and "unknown benchmark 'second'" in said
    assert said.endswith("failed: first, second\n")


def test_the_loopback_carries_something() -> None:
    assert allreduce.loopback(0.2)[str(allreduce.SIZES[0])] > 10e6


def test_processes_by_hand_report_what_failed() -> None:
    talk = "import os, sys; sys.exit(os.environ['TF_CONFIG'])"
    variables = steps.tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)
    with pytest.raises(RuntimeError, match=r'worker 1, by hand, ended with 1:\n.*"index": 1'):
        steps.run_processes([("worker 1", [sys.executable, "-c", talk], variables)])


def test_processes_by_hand_that_never_end_are_ended_with_the_first(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    serve = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)"
    wait = f"import os, time\nwhile not os.path.exists({str(mark)!r}): time.sleep(0.01)"
    steps.run_processes(
        [("chief", [sys.executable, "-c", wait], {}), ("ps", [sys.executable, "-c", serve], {})], end_with_first=True
    )


def test_a_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "TABLE", tmp_path / "RESULTS.md")
    quiet = harness.Quiet(0.0)
    quiet.wait(0.01)
    assert quiet.was_quiet()
    harness.record("one", [], {"x": 1}, quiet, table="| mine |")
    assert "| mine |" in capsys.readouterr().out
    assert "| mine |\n\n2" in (tmp_path / "RESULTS.md").read_text()
    assert json.loads((tmp_path / "results" / "one.json").read_text())["samples"] == {"x": 1}


@pytest.mark.parametrize(
    ("measure", "command", "words"),
    [
        (peers._launch, ["sh", "-c", "echo no ray; exit 3"], "ended with 3: no ray"),
        (peers._failure, ["true"], "true ended with 0"),
        (peers._kill, ["sh", "-c", "exit 1"], "did not start"),
    ],
)
def test_a_launcher_that_does_not_do_its_work_has_failed_and_is_not_fast(
    tmp_path: Path, measure: Callable[[list[str], Path], Numbers], command: list[str], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        measure(command, tmp_path / "folder")


def test_a_peer_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_TIMEOUT", 0.2)
    with (
        pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"),
        peers._started(["sleep", "600"], "launch", tmp_path / "folder") as started,
    ):
        peers._wait(started)
    assert started.returncode == -9


def test_what_there_is_when_it_is_cut_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "TABLE", tmp_path / "RESULTS.md")
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/torchrun").touch()
    left = iter(range(5))

    def way() -> Numbers:
        if next(left) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"seconds": 0.25}

    monkeypatch.setattr(peers, "_ways", lambda what, folder: {"fleetfit": way})
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))  # the benchmark sets its own
    with pytest.raises(SystemExit):
        peers.run(argparse.Namespace(alternations=None, patience=0.0, dry=False))
    assert "two processes that do nothing, s (2 rounds) | 0.25 (0.25 to 0.25)" in (tmp_path / "RESULTS.md").read_text()
    assert "1/4, fleetfit: 0.25" in capsys.readouterr().err
    kept = json.loads((tmp_path / "results/peers.json").read_text())
    assert kept["samples"]["measured"]["launch"]["fleetfit"] == [{"seconds": 0.25}] * 2
