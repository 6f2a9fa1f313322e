"""Render a comparison, or one job, as a single HTML file without external resources."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from estimators.results.html import render

if TYPE_CHECKING:
    from estimators.results.comparison.comparison import Comparison

#: The headings of the plots, by the names of the plots, in the order of the page.
_PLOTS = {
    "throughput": "Throughput",
    "curves": "Losses and accuracies",
    "scaling": "Scaling",
    "steps": "Step times",
    "phases": "Where the time went",
}


def report_html(comparison: Comparison, *, title: str | None = None) -> str:
    """Return a comparison as a whole HTML page.

    Args:
        comparison: The runs. A single run is enough.
        title: The heading. None to use the job's name, or the number of configurations if there are several runs.
    """
    if title is None:
        alone = len(comparison.results) == 1
        title = comparison.results[0].job_name if alone else f"{len(comparison.groups)} configurations compared"
    kinds = [
        kind for kind in _PLOTS if kind != "scaling" or len({group.first.processes for group in comparison.groups}) > 1
    ]
    drawn = [(kind, comparison.plot(kind)) for kind in kinds]
    return render(
        "results/templates/report",
        title=title,
        when=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        table=comparison._repr_html_(),
        # Empty plots come last.
        plots=[(_PLOTS[kind], plot) for kind, plot in sorted(drawn, key=lambda pair: pair[1].empty)],
        jobs=[(group.name, result) for group in comparison.groups for result in group.results],
    )
