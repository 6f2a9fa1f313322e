"""Draw losses and accuracies against time and against samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from estimators.job.errors import ConfigurationError
from estimators.results.comparison.comparison import Comparison
from estimators.results.plots import INK, Plot, style
from estimators.results.result import Point, Result

#: The possible x axes: the attribute of a point, and the title of the axis.
AGAINST = {"time": "time since the job's start (s)", "samples": "samples trained on"}
#: For each kind of change of an elastic job, the marker and the height of the marker in the plot, from 0 to 1.
MARKS = {
    "joined": ("^", 0.97),
    "left": ("v", 0.89),
    "excluded": ("x", 0.81),
    "restored": ("<", 0.73),
    "restarted": ("<", 0.73),
    "committed": ("|", 0.02),
}
#: The metrics that are drawn by default if they exist.
_USUAL = ("loss", "val_loss", "accuracy", "val_accuracy")
_MOST = 4


def draw(
    comparison: Comparison, *, metrics: Sequence[str] | None = None, against: Sequence[str] | str | None = None
) -> Plot:
    """Draw metrics against time and samples. Each metric has a row of axes.

    Args:
        comparison: The runs.
        metrics: The names of the metrics. None to draw losses and accuracies, or the first other metrics if there are
            no losses and accuracies.
        against: ``"time"``, ``"samples"`` or a list of both. None to draw both.

    Raises:
        ConfigurationError: ``against`` contains an unknown name.
    """
    chosen = [against] if isinstance(against, str) else list(against or AGAINST)
    for name in chosen:
        if name not in AGAINST:
            raise ConfigurationError(f"against={name!r}: curves can be drawn against {' or '.join(AGAINST)}.")
    asked = list(metrics) if metrics is not None else usual_metrics(comparison)
    # Metrics without points get no axes.
    names = [name for name in asked if any(_has(comparison, name, kind) for kind in chosen)]
    chosen = [kind for kind in chosen if any(_has(comparison, name, kind) for name in names)]
    if not names:
        told = f"no run reported {' or '.join(asked)}" if asked else "no run reported metrics"
        return style.nothing("Curves", told)
    made, axes = style.figure(len(names), len(chosen), height=0.9 + 2.1 * len(names))
    looks = style.looks([group.strategy for group in comparison.groups])
    for row, metric in enumerate(names):
        for column, kind in enumerate(chosen):
            one = axes[row * len(chosen) + column]
            drawn = False
            for place, group in enumerate(comparison.groups):
                for number, result in enumerate(group.results):
                    x, y = curve(result, metric, kind)
                    if x:
                        name = style.short(group.name) if number == 0 else "_"
                        alpha = 1.0 if len(group.results) == 1 else 0.75
                        one.plot(x, y, label=name, alpha=alpha, **looks[place].line(len(x)))
                        drawn = True
            last_row = row == len(names) - 1
            if kind == "time" and drawn:
                _mark(one, comparison)
            style.label(one, x=AGAINST[kind] if last_row else "", y=metric if column == 0 else "")
            if not drawn:
                style.say(one, f"no run has data for {metric} against {kind}")
    for column in range(len(chosen)):
        _align([one for one in axes[column :: len(chosen)] if one.get_lines()])
    style.legend(made, max(axes, key=lambda one: len(one.get_lines())))
    return Plot(made, "Curves")


def _has(comparison: Comparison, metric: str, against: str) -> bool:
    return any(curve(result, metric, against)[0] for result in comparison.results)


def _mark(axes: Any, comparison: Comparison) -> None:
    """Mark the changes of elastic jobs: a line for each resize, and markers for the other changes."""
    where = axes.get_xaxis_transform()
    named: set[str] = set()
    looks = style.looks([group.strategy for group in comparison.groups])
    for place, group in enumerate(comparison.groups):
        for result in group.results:
            colour = looks[place].colour if len(comparison.groups) > 1 else INK
            for moment in result.moments:
                name = moment.kind if moment.kind not in named else "_"
                named.add(moment.kind)
                if moment.kind == "resized":
                    axes.axvline(moment.elapsed_s, color=colour, linewidth=0.9, linestyle=":", label=name, gid="moment")
                elif moment.kind in MARKS:
                    sign, height = MARKS[moment.kind]
                    axes.plot(
                        [moment.elapsed_s], [height], sign, transform=where, color=colour, markersize=5, clip_on=False,
                        label=name, gid="moment",
                    )  # fmt: skip


def _align(axes: Sequence[Any]) -> None:
    """Set the same range for all x axes in a column of the figure. The range begins at the start of the jobs."""
    if not axes:
        return
    begin = min([0.0, *(place for one in axes for line in one.get_lines() for place in line.get_xdata())])
    end = max(one.get_xlim()[1] for one in axes)
    for one in axes:
        one.set_xlim(begin, end)


def usual_metrics(comparison: Comparison) -> list[str]:
    """Return the default metrics: losses and accuracies, or the first other metrics if there are no losses and
    accuracies.
    """
    found: dict[str, None] = {point.name: None for result in comparison.results for point in result.series}
    usual = [name for name in _USUAL if name in found]
    others = [name for name in found if name not in ("epoch", "samples_per_second")]
    return (usual or others)[:_MOST]


def curve(result: Result, metric: str, against: str) -> tuple[list[float], list[float]]:
    """Return the x and y values of a metric's curve for one run. ``against`` names the x axis: ``"time"`` or
    ``"samples"``. Pure.

    The curve contains the finite values of all attempts. If several ranks reported the metric, only the values of the
    lowest rank are used.
    """
    points = [point for point in result.series if point.name == metric and math.isfinite(point.value)]
    if not points:
        return [], []
    rank = min((point.rank for point in points if point.rank is not None), default=None)
    points = [point for point in points if point.rank == rank]
    placed = [(place, point.value) for point in points if (place := _place(point, against)) is not None]
    placed.sort(key=lambda pair: pair[0])
    return [place for place, _ in placed], [value for _, value in placed]


def _place(point: Point, against: str) -> float | None:
    return point.elapsed_s if against == "time" else point.samples
