"""A comparison, or one job, as a single HTML file without anything from elsewhere."""

from __future__ import annotations

import datetime
import html
from typing import TYPE_CHECKING

from estimators.results.comparison.html import comparison_html
from estimators.results.page import result_html

if TYPE_CHECKING:
    from estimators.results.comparison.comparison import Comparison

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 2vw; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 40rem), 1fr)); gap: 0 3rem; }
svg { width: 100%; max-width: 64rem; height: auto; } figure { margin: 0; } .none svg { width: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; } .faint { opacity: .7; }
@media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #161616; } }
"""

#: Kind of plot -> its heading, in the order of the page.
_PLOTS = {
    "throughput": "Throughput",
    "curves": "Losses and accuracies",
    "scaling": "Scaling",
    "steps": "Step times",
    "phases": "Where the time went",
}


def report_html(comparison: Comparison, *, title: str | None = None) -> str:
    """The page.

    Args:
        comparison: The runs; one is enough.
        title: Its heading; default: what is compared.
    """
    alone = len(comparison.results) == 1
    if title is None:
        names = [group.name for group in comparison.groups]
        title = comparison.results[0].job_name if alone else f"{len(names)} configurations compared"
    kinds = [kind for kind in _PLOTS if not (kind == "scaling" and _one_size(comparison))]
    drawn = [(kind, comparison.plot(kind)) for kind in kinds]
    plots = "".join(
        f"<section{' class=none' if plot.empty else ''}><h2>{_PLOTS[kind]}</h2><figure>{plot.svg()}</figure></section>"
        for kind, plot in sorted(drawn, key=lambda pair: pair[1].empty)  # those that say that they have nothing, last
    )
    jobs = "".join(
        f"<details{' open' if alone else ''}><summary>{html.escape(group.name)}: {html.escape(result.job_name)}"
        f" <span class=faint>{html.escape(result.status)}</span></summary>{result_html(result)}</details>"
        for group in comparison.groups
        for result in group.results
    )
    when = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class=faint>fleetfit, {html.escape(when)}</p>"
        f"{comparison_html(comparison)}<div class=plots>{plots}</div><h2>Runs</h2>{jobs}</body></html>\n"
    )


def _one_size(comparison: Comparison) -> bool:
    return len({group.first.processes for group in comparison.groups}) < 2
