"""What the benchmarks conclude from numbers, and where they write it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Bar, Estimate, Row


def test_our_own_work_is_not_others() -> None:
    before, others = harness.OthersShare._seconds()
    subprocess.run(["sh", "-c", "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done"], check=True)
    ours = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    after, others_after = harness.OthersShare._seconds()
    assert ours > 0.1
    assert others_after - others < after - before - 0.05


def test_results_replace_their_own_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "TABLE", tmp_path / "RESULTS.md")
    row = Row(what="w", estimate=Estimate(value=1.0, low=0.5, high=2.0, count=3), unit="s", bar=Bar(limit=1.5))
    quiet = harness.Quiet(0.0)
    quiet.wait(0.01)
    assert quiet.was_quiet()
    harness.record("one", [row], {"x": [1.0]}, quiet)
    harness.record("two", [row], {}, quiet)
    harness.record("one", [row, row], {}, quiet)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("| w | 1.000 s | 0.500 to 2.000 | 3 | < 1.5 s: met |") == 3
    assert text.count("](plots/one.svg)") == text.count("](plots/two.svg)") == 1
    assert (tmp_path / "plots" / "one.svg").read_text().startswith("<?xml")
    assert text.index("<!-- one: end -->") < text.index("<!-- two: begin -->")
    assert json.loads((tmp_path / "results" / "one.json").read_text())["rows"][0]["verdict"] == "met"


def test_a_table_is_kept_where_no_plot_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "TABLE", tmp_path / "RESULTS.md")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    row = Row(what="w", estimate=Estimate(value=1.0, low=0.5, high=2.0, count=3), unit="s")
    quiet = harness.Quiet(0.0)
    quiet.wait(0.01)
    assert quiet.was_quiet()
    harness.record("one", [row], {}, quiet)
    assert "| w | 1.000 s |" in (tmp_path / "RESULTS.md").read_text()
    assert "without a plot" in capsys.readouterr().err


def test_waiting_for_a_process() -> None:
    process = subprocess.Popen(["true"])
    harness.wait_for_exit(process.pid, timeout=10.0)  # a zombie is enough
    process.wait()
    with pytest.raises(TimeoutError):
        harness.wait_for_exit(os.getpid(), timeout=0.01)
