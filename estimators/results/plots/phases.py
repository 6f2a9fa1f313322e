"""Draw how long each phase of the runs took."""

from __future__ import annotations

from estimators.records.phases import PHASES
from estimators.results.comparison.comparison import Comparison
from estimators.results.plots import INK, Plot, style

#: Adjacent phases differ in lightness as well as in hue.
_COLOURS = {
    "launch": "#56B4E9",
    "import": "#0072B2",
    "rendezvous": "#CC79A7",
    "first_step": "#E69F00",
    "training": "#009E73",
    "teardown": "#D55E00",
}
_HATCHES = {"import": "//", "first_step": "..", "teardown": "\\\\"}


def draw(comparison: Comparison) -> Plot:
    """Draw a bar for each configuration. The bar consists of the median times of the phases.

    If no run of a configuration has completed, the configuration's bar ends with the last known phase.
    """
    groups = comparison.groups
    made, [axes] = style.figure(height=1.4 + 0.42 * max(2, len(groups)))
    drawn: set[str] = set()
    for place, group in enumerate(groups):
        left = 0.0
        runs = group.completed or group.results
        for phase in PHASES:
            known = sorted(seconds for result in runs if (seconds := result.phases.get(phase)) is not None)
            if not known:
                continue
            seconds = known[len(known) // 2]
            name = "_" if phase in drawn else phase.replace("_", " ")
            style.bar(axes, place, left, seconds, _COLOURS[phase], _HATCHES.get(phase), name)
            drawn.add(phase)
            left += seconds
        if group.failed and not group.completed:
            axes.text(left, place, " failed", va="center", color=INK, fontsize=8, style="italic")
    if not drawn:
        return style.nothing("Phases", "no run has recorded its phases")
    style.name_rows(axes, [style.short(group.name) for group in groups], "time (s), median of the runs")
    style.legend(made, axes)
    return Plot(made, "Phases")
