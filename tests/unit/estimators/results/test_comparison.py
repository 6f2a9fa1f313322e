"""Runs side by side: groups, marks, tables, plots and the report, from results that were never run."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from synthetic import result, status

from estimators import Comparison, ComparisonWarning, ConfigurationError, Result, TensorFlow, compare
from estimators.client.compare import _labels, _turns
from estimators.job.errors import RecordError
from estimators.records.record import job_names
from estimators.results import html
from estimators.results.plots import INK, KINDS, style
from estimators.results.result import Point
from estimators.testing import FakeOutcome

ALONE: dict[str, Any] = {"hosts": 1, "ranks": 1, "batch_size": 32, "waits_s": (0.0,)}


def three() -> Comparison:
    return compare({
        "alone": result("mpi", name="a-1", step_s=0.02, **ALONE),
        "mpi": result("mpi", name="b-1", step_s=0.025, batch_size=32),
        "servers": result("parameter_server", name="c-1", step_s=0.05, batch_size=32),
    })  # fmt: skip


def failed(name: str = "f-1") -> Result:
    reason = "algo-2, rank 1: ValueError: loss is nan\nmore"
    return result("mpi", name=name, events=[], state=status("Failed", FailureReason=reason))


def test_the_table_has_a_row_for_each_and_efficiency_against_one_process() -> None:
    comparison = three()
    head, rows = comparison.rows()
    assert [row[0] for row in rows] == ["alone", "mpi", "servers"]
    assert head[-1] == "efficiency" and rows[0][-1] == "100 %" and rows[1][-1] == "40 %"
    frame = comparison.table()
    assert frame.loc["mpi", "samples_per_s"] == pytest.approx(1280)
    assert frame.loc["servers", "strategy"] == "parameter_server"


def test_repeated_runs_have_medians_and_spread() -> None:
    runs = [result("mpi", name=f"r-{n}", step_s=step_s) for n, step_s in enumerate((0.02, 0.04, 0.025))]
    comparison = compare(*runs, names=["mpi"] * 3)
    [group] = comparison.groups
    assert len(group.completed) == 3
    assert comparison.table().loc["mpi", "samples_per_s"] == pytest.approx(2560)
    assert comparison.table().loc["mpi", "samples_per_s_low"] == pytest.approx(1600)
    assert "2,560 (1,600 – 3,200)" in str(comparison)


def test_failed_runs_are_shown_with_their_cause() -> None:
    comparison = compare(result("mpi", name="ok-1"), failed())
    assert "loss is nan" in str(comparison) and "loss is nan" in comparison._repr_html_()
    assert "0 of 1" in str(comparison)
    assert "loss is nan" in comparison.table()["failure"].iloc[1]


def test_a_run_that_has_not_ended_is_shown_as_such() -> None:
    comparison = compare(dataclasses.replace(result(name="busy"), status="InProgress"))
    assert "0 of 1" in str(comparison) and "busy has not ended yet" in str(comparison)
    assert comparison.table()["failure"].iloc[0] == "has not ended yet"


def test_different_data_and_batches_are_warned_of_and_marked() -> None:
    mine, other = ({"data": {"train": {"digest": text}}} for text in ("aa", "bb"))
    runs = {
        "first": result(name="a-1", provenance=mine),
        "same": result(name="b-1", provenance=mine),
        "data": result(name="c-1", provenance=other),
        "batch": result(name="d-1", provenance=mine, batch_size=128),
    }
    with pytest.warns(ComparisonWarning) as told:
        comparison = compare(runs)
    texts = [str(one.message) for one in told]
    assert any("different data" in text and "data differs from first" in text for text in texts)
    assert any("first: 64" in text and "batch: 128" in text for text in texts)
    assert [comparison.marks(group) for group in comparison.groups] == ["", "", "†", "‡"]
    assert "data †" in str(comparison) and "† the data differs" in str(comparison)


def test_the_same_data_without_a_digest_is_no_difference() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(result(name="a-1", provenance={"data": {"train": {"digest": "aa"}}}), result("mpi", name="b-1"))


def test_estimators_take_turns_in_both_directions() -> None:
    assert _turns([True, False, True, True], 3) == [0, 2, 3, 3, 2, 0, 0, 2, 3]


def test_names_tell_runs_apart() -> None:
    one = result("mpi", name="a-1")
    tuned = dataclasses.replace(one, hyperparameters={"lr": 0.1})
    slower = dataclasses.replace(one, hyperparameters={"lr": 0.2})
    assert _labels([one, result("parameter_server")]) == ["mpi 2 × 1", "parameter_server 2 × 1"]
    assert _labels([tuned, slower]) == ["mpi 2 × 1, lr 0.1", "mpi 2 × 1, lr 0.2"]
    assert _labels([tuned, one]) == ["mpi 2 × 1, no epochs", "mpi 2 × 1, epochs 3"]
    assert _labels([one, dataclasses.replace(one, job_name="b-1")]) == ["mpi 2 × 1, a-1", "mpi 2 × 1, b-1"]


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        ((), {}, "none was given"),
        ((3,), {}, "takes estimators"),
        ((result(),), {"repeat": 0}, "at least 1"),
        ((result(),), {"names": "mpi"}, "needs a list of 1 names"),
        ((result(),), {"inputs": {"train": "x"}}, "is for estimators"),
        ((result(),), {"prices": {"ml.m5.large": -1}}, "at least 0"),
        (({"a": result()},), {"names": ["b"]}, "already gives the names"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: tuple, options: dict, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        compare(*arguments, **options)


def test_prices_of_ones_own() -> None:
    runs = (result(name="a-1", instance_type="local_process"), result(name="b-1", instance_type="local_process"))
    assert "cost" not in compare(*runs).table()
    assert compare(*runs, prices={"local_process": 3.6}).table()["cost"].iloc[0] == pytest.approx(0.08)


# --- plots ---


def many_points(count: int) -> Result:
    points = tuple(
        Point(name="loss", value=1 / (n + 1), rank=0, host="algo-1", attempt=0, elapsed_s=float(n), samples=n * 10)
        for n in range(count)
    )
    return dataclasses.replace(result(name="long-1"), series=points)


@pytest.mark.parametrize("kind", KINDS)
def test_every_plot_renders_whatever_there_is(kind: str) -> None:
    older = dataclasses.replace(failed("old-1"), status="Completed", series=(), ranks=(), steps_per_second=None)
    for runs in ([result()], [failed()], [older], [many_points(20_000)], [result(name="a-1"), failed()]):
        plot = compare(*runs).plot(kind)
        assert plot._repr_png_().startswith(b"\x89PNG")
        ElementTree.fromstring(plot.svg())
        for axes in plot.figure.axes:
            shown = axes.get_lines() or axes.patches
            if shown and axes.get_xlabel():
                assert re.search(r"\((s|ms|%)\)|/s|samples|processes", axes.get_xlabel()), axes.get_xlabel()
                assert any(tick.get_text() for tick in axes.get_xticklabels()), "an axis without numbers"


def test_curves_begin_with_the_job() -> None:
    plot = three().plot("curves")
    assert [axes.get_xlim()[0] for axes in plot.figure.axes] == [0.0, 0.0]
    assert plot.figure.axes[0].get_xlim()[1] >= 30


@pytest.mark.parametrize("kind", ["curves", "throughput", "phases", "scaling", "steps"])
def test_a_plot_of_nothing_is_a_line_that_says_so(kind: str) -> None:
    plot = compare(dataclasses.replace(older(), series=(), phases={}, ranks=(), steps=None)).plot(kind)
    assert plot.empty
    assert plot.figure.get_figheight() < 1


def test_curves_have_room_for_what_there_is_and_their_legend_beside_them() -> None:
    without = [
        dataclasses.replace(one, series=tuple(dataclasses.replace(point, samples=None) for point in one.series))
        for one in three().results
    ]
    figure = compare(*without).plot("curves").figure
    assert len(figure.axes) == 1  # one metric, against time alone
    [legend] = figure.legends
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.x0 >= figure.axes[0].get_window_extent().x1


def test_metrics_stand_in_front_of_what_only_some_look_at() -> None:
    titles = [column.title for column in three().columns]
    assert titles[:2] == ["samples/s", "loss"]
    assert titles.index("loss") < titles.index("steps/s")
    page = three()._repr_html_()
    assert "overflow-x:auto;scrollbar-width:thin" in page


def test_an_unknown_plot_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="throughput"):
        three().plot("thruput")
    with pytest.raises(ConfigurationError, match="time or samples"):
        three().plot("curves", against="steps")


def _contrast(one: str, other: str) -> float:
    """As the WCAG has it: 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_stand_out_on_light_and_dark_grounds() -> None:
    white, black = "#ffffff", "#000000"
    assert _contrast(INK, white) >= 4.5 and _contrast(INK, black) >= 4.5
    for colour in style.PALETTE:
        assert _contrast(colour, white) >= 2.0 and _contrast(colour, black) >= 3.0, colour
    assert len(_distinct(["mpi"] * 12)) == 12


def test_a_strategy_has_the_same_colour_in_every_picture() -> None:
    two = style.looks(["parameter_server", "mpi"])
    many = style.looks(["mpi", "mpi", "collective_all_reduce", None, "parameter_server"])
    assert many[0].colour == many[1].colour == two[1].colour and many[4].colour == two[0].colour
    assert len({look.colour for look in many}) == 4
    assert len(_distinct(["mpi", "mpi", "collective_all_reduce", None, "mirrored"])) == 5


def _distinct(strategies: list[str | None]) -> set[tuple[str, str]]:
    lines = [look.line(100) for look in style.looks(strategies)]
    return {(str(line["color"]), str(line["linestyle"])) for line in lines}


# --- the report ---


def test_words_of_the_report_read_on_its_light_and_dark_grounds(tmp_path: Path) -> None:
    """A job's state has a colour of its own on both; all else takes the page's, which follows the reader's choice."""
    page = three().report(tmp_path / "report.html").read_text(encoding="utf-8")
    text, ground = re.findall(r"body \{[^}]*?color: (#\w+);\s+background: (#\w+);", page)[0]
    dark_text, dark_ground = re.findall(r"dark\) \{ body \{ color: (#\w+); background: (#\w+); \}", page)[0]
    ground = {"#fff": "#ffffff"}[ground]
    assert _contrast(text, ground) >= 7 and _contrast(dark_text, dark_ground) >= 7
    for colour in {*html.STATE_COLOURS.values(), INK}:
        assert min(_contrast(colour, ground), _contrast(colour, dark_ground)) >= 3.9, colour


def test_the_report_is_one_file_without_anything_from_elsewhere(tmp_path: Path) -> None:
    text = three().report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', text)
    assert not re.search(r"url\((?!#)|@import|<script|<link", text)
    assert text.count("<svg") == 5 and "currentColor" in text and "prefers-color-scheme: dark" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def older() -> Result:
    """What a version wrote that knew no more of a job than what none of them does without."""
    kept = {field.name for field in dataclasses.fields(Result) if field.default is field.default_factory} | {"format"}
    return Result.from_dict({name: value for name, value in result(name="old-1").to_dict().items() if name in kept})


def diverged() -> Result:
    found = result(name="nan-1")
    series = [dataclasses.replace(point, value=value) for point in found.series for value in (math.nan, math.inf, 1.0)]
    return dataclasses.replace(found, series=tuple(series), final_metrics={"loss": math.nan, "accuracy": math.inf})


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: dataclasses.replace(result(name="e-1"), series=(), final_metrics={}), id="empty metrics"),
        pytest.param(failed, id="failed"),
        pytest.param(older, id="older version"),
        pytest.param(lambda: many_points(20_000), id="thousands of points"),
        pytest.param(diverged, id="not a number"),
    ],
)
def test_whatever_a_job_has_or_lacks_its_table_page_and_report_render(
    make: Callable[[], Result], tmp_path: Path
) -> None:
    comparison = compare(make())
    assert len(comparison.table()) == 1 and str(comparison)
    file = comparison.report(tmp_path / "report.html")
    text = file.read_text(encoding="utf-8")
    assert comparison._repr_html_() in text and comparison.results[0].job_name in text
    assert file.stat().st_size < 1 << 20
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(pictures) == 4  # one size: no scaling
    for picture in pictures:
        ElementTree.fromstring(picture)


def test_secrets_and_markup_of_names_do_not_get_into_the_page(tmp_path: Path) -> None:
    comparison = compare({"<script>alert(1)</script>": result()})
    text = comparison.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text


def test_hosts_without_a_strategy_have_no_efficiency() -> None:
    # Each trains by itself, on all of the data.
    one, two = result(None, name="a-1", **ALONE), result(None, hosts=2, name="b-1", batch_size=32)
    comparison = compare({"one": one, "two": two})
    head, rows = comparison.rows()
    assert head[-1] == "efficiency" and [row[-1] for row in rows] == ["100 %", "–"]
    assert two.efficiency(one) is None


# --- running estimators, on the fake backend ---


def fake(outcome: FakeOutcome, **arguments: Any) -> TensorFlow:
    return TensorFlow(
        entry_point="train.py",
        source_dir=arguments.pop("source_dir"),
        instance_type="local_fake",
        run_options=outcome.run_options(),
        **arguments,
    )


def test_what_is_wrong_with_one_is_said_before_any_runs(tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").write_text("")
    good = fake(FakeOutcome(), source_dir=str(tmp_path))
    wrong = TensorFlow(entry_point="nothing.py", source_dir=str(tmp_path), instance_type="local_process")
    with pytest.raises(ConfigurationError, match=r"nothing\.py"):
        compare(good, wrong)
    assert job_names() == []


@pytest.mark.parametrize("seconds", [(0.0201, 0.0203), (0.003, 0.02, 0.9)])
def test_times_of_steps_have_numbers_on_their_axis(seconds: tuple[float, ...]) -> None:
    plot = compare(*(result(step_s=step_s, name=f"a-{number}") for number, step_s in enumerate(seconds))).plot("steps")
    plot._repr_png_()
    [axes] = plot.figure.axes
    low, high = axes.get_xlim()
    shown = [
        tick.get_text()
        for tick, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
        if low <= place <= high
    ]
    assert len(shown) >= 2 and all(shown), shown


def test_a_report_of_one_failed_job_has_its_cause(tmp_path: Path) -> None:
    text = compare(failed()).report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "loss is nan" in text and "f-1" in text


def test_a_full_disk_names_the_report() -> None:
    with pytest.raises(RecordError, match=r"/dev/full.*Free some space"):
        compare(result()).report("/dev/full")
