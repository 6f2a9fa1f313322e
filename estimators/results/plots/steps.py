"""Draw the distribution of the step times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from container.contract.durations import Durations
from estimators.results.comparison.comparison import Comparison
from estimators.results.plots import Plot, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The ratio of the longest to the shortest step above which the axis is logarithmic.
_WIDE = 10.0


def draw(comparison: Comparison) -> Plot:
    """Draw a cumulative distribution of step times for each configuration."""
    made, [axes] = style.figure(height=3.2 + 0.06 * len(comparison.groups))  # the legend needs a part of the height
    drawn: list[float] = []
    looks = style.looks([group.strategy for group in comparison.groups])
    for place, group in enumerate(comparison.groups):
        times = Durations.sum(result.step_times for result in group.completed or group.results)
        if not times.count:
            continue
        x: list[float] = []
        y: list[float] = []
        below = 0
        for begin, end, count in times.bars():
            if not x:
                x, y = [begin * 1e3], [0.0]
            below += count
            x.append(min(end, times.longest_s) * 1e3 if below == times.count else end * 1e3)
            y.append(100.0 * below / times.count)
        axes.plot(x, y, label=style.short(group.name), **looks[place].line(len(x) + 100))
        drawn += x
    if not drawn:
        return style.nothing("Step times", "no run has recorded step times")
    axes.set_ylim(0, 101)
    _scale(axes, drawn)
    style.label(axes, x="time of a step (ms)", y="steps up to this time (%)")
    style.legend(made, axes)
    return Plot(made, "Step times")


def _scale(axes: Axes, times: Sequence[float]) -> None:
    """Set a logarithmic or linear time axis, so that the numbers on the axis are readable for wide and for narrow
    ranges.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    if max(times) > _WIDE * min(times) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
