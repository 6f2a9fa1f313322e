"""Draw the predicted time of a step for each option of a recommendation, divided into computing, waiting and
exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimators.results.plots import INK, Plot, style

if TYPE_CHECKING:
    from estimators.results.advice.recommending import Candidate, Recommendation

#: The colour and the hatching of each part of a step.
_PARTS = {"computing": ("#009E73", None), "waiting for the slowest": ("#E69F00", ".."), "exchange": ("#0072B2", "//")}


def draw(recommendation: Recommendation) -> Plot:
    """Draw a bar for each option, the best option at the top.

    The bar shows the times for computing, for waiting for the slowest process, and for the exchange after computing.
    """
    options = recommendation.options
    made, [axes] = style.figure(height=1.4 + 0.42 * max(2, len(options)))
    longest = max(option.prediction.step_s for option in options) * 1e3
    for place, option in enumerate(options):
        one = option.prediction
        left = 0.0
        parts = (one.compute_s, one.waiting_s, one.exchange_s)
        for (name, (colour, hatch)), seconds in zip(_PARTS.items(), parts, strict=True):
            style.bar(axes, place, left, seconds * 1e3, colour, hatch, name if place == 0 else "_")
            left += seconds * 1e3
        speed = f"{one.samples_per_second:,.0f} samples/s"
        axes.text(left + longest * 0.015, place, speed, va="center", color=INK, fontsize=8)
    style.name_rows(axes, [style.short(_title(option), 44) for option in options], "predicted time of a step (ms)")
    axes.set_xlim(0, longest * 1.28)
    style.legend(made, axes)
    return Plot(made, "Predicted steps")


def _title(option: Candidate) -> str:
    where = f"{option.hosts} × {option.instance_type}" if option.instance_type else f"{option.hosts} hosts"
    return f"{option.strategy}, {where}"
