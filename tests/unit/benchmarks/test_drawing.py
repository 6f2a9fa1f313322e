"""The plots below the tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import allreduce, drawing, harness
from benchmarks.harness import Bar, Estimate, Row


def line(what: str, value: float, unit: str = "s", bar: Bar | None = None) -> dict[str, Any]:
    estimate = Estimate(value=value, low=value * 0.9, high=value * 1.2, count=5)
    return Row(what=what, estimate=estimate, unit=unit, bar=bar).to_dict()


def texts(plot: Any) -> list[str]:
    """What the plot's axes and legend say."""
    found = [text.get_text() for axes in plot.figure.axes for text in axes.texts]
    for axes in plot.figure.axes:
        found += [tick.get_text() for tick in axes.get_yticklabels()] + [axes.get_xlabel(), axes.get_ylabel()]
    return found + [text.get_text() for legend in plot.figure.legends for text in legend.get_texts()]


def test_every_row_has_a_point_its_unit_and_its_verdict() -> None:
    rows = [
        line("fast", 0.2, bar=Bar(limit=0.3)),
        line("slow", 0.9, bar=Bar(limit=0.3)),
        line("near", 0.32, bar=Bar(limit=0.3)),
        line("free", 0.5),
        line("much", 812.0, "requests/s", Bar(limit=500, at_least=True)),
    ]
    plot = drawing.intervals(rows)
    assert len(plot.figure.axes) == 2, "a panel for each unit"
    said = texts(plot)
    assert {"fast", "slow", "near", "free", "much", "s", "requests/s", "0.2 s", "812 requests/s"} <= set(said)
    assert said[-5:] == ["bar met", "bar open", "bar missed", "no bar", "the bar"]
    assert plot._repr_png_().startswith(b"\x89PNG")


def test_ratios_far_apart_share_a_logarithmic_axis() -> None:
    (axes,) = drawing.intervals([line("a", 0.6, ""), line("b", 40.0, "")]).figure.axes
    assert axes.get_xscale() == "log"
    (axes,) = drawing.intervals([line("a", 0.6, ""), line("b", -0.1, "")]).figure.axes
    assert axes.get_xscale() == "linear"


def test_strategies_and_reductions_are_curves() -> None:
    rates = {way: [{str(size): size * 10.0 for size in allreduce.SIZES}] * 3 for way in [*allreduce.WAYS, "loopback"]}
    plot = drawing._allreduce([row.to_dict() for row in allreduce.rows_of(rates)])
    assert set(allreduce.WAYS) <= set(texts(plot))
    (axes,) = plot.figure.axes
    assert all(len(curve[0].get_xdata()) == len(allreduce.SIZES) for curve in axes.containers)
    recorded = json.loads((harness.RESULTS / "strategies.json").read_text())["rows"]
    plot = drawing._strategies(recorded)
    assert len(plot.figure.axes) == 2
    drawn = sum(len(curve[0].get_xdata()) for axes in plot.figure.axes for curve in axes.containers)
    assert drawn == len(recorded), "a row is not in the plot"


@pytest.mark.parametrize("file", sorted(harness.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_recorded_can_be_drawn(file: Path, tmp_path: Path) -> None:
    if rows := json.loads(file.read_text()).get("rows"):
        text = drawing.picture(file.stem, rows, tmp_path / "plots").read_text()
        assert len(re.findall("<path", text)) > 10


def test_the_tables_show_plots_that_are_there() -> None:
    shown = re.findall(r"\]\((plots/[\w-]+\.svg)\)", harness.TABLE.read_text())
    assert len(shown) == len(set(shown)) > 5
    assert all((harness.TABLE.parent / name).is_file() for name in shown)


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    rows = [line("fast", 0.2)]
    assert (
        drawing.picture("x", rows, tmp_path / "a").read_bytes()
        == drawing.picture("x", rows, tmp_path / "b").read_bytes()
    )
