"""Draw the speed of each configuration in samples per second, with the spread over its runs."""

from __future__ import annotations

from estimators.results.comparison.comparison import Comparison
from estimators.results.plots import INK, Plot, style


def draw(comparison: Comparison) -> Plot:
    """Draw a bar for each configuration. The bar shows the median of the runs, and an error bar shows the lowest and
    the highest value.
    """
    groups = comparison.groups
    made, [axes] = style.figure(height=0.9 + 0.42 * max(2, len(groups)))
    spreads = [group.spread("samples_per_second") for group in groups]
    unit = "samples/s"
    if not any(spreads):
        spreads = [group.spread("steps_per_second") for group in groups]
        unit = "steps/s"
    if not any(spreads):
        return style.nothing("Throughput", "no run has recorded its speed")
    longest = max(spread.high for spread in spreads if spread is not None)
    looks = style.looks([group.strategy for group in groups])
    for place, (group, spread) in enumerate(zip(groups, spreads, strict=True)):
        if spread is None:
            text = "failed" if group.failed and not group.completed else "not known"
            axes.text(longest * 0.01, place, text, va="center", color=INK, fontsize=8, style="italic")
            continue
        axes.barh(place, spread.median, height=0.62, color=looks[place].colour)
        if spread.count > 1:
            error = [[spread.median - spread.low], [spread.high - spread.median]]
            axes.errorbar(spread.median, place, xerr=error, color=INK, capsize=4, linewidth=1.4)
        axes.text(spread.high + longest * 0.015, place, _text(spread.median), va="center", color=INK, fontsize=8)
    several = any(spread is not None and spread.count > 1 for spread in spreads)
    names = [f"{style.short(group.name)} {comparison.marks(group)}".rstrip() for group in groups]
    style.name_rows(axes, names, f"{unit}{': median, lowest and highest of the runs' if several else ''}")
    axes.set_xlim(0, longest * 1.14)
    return Plot(made, "Throughput")


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
