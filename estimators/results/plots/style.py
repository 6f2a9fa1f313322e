"""Define the style that all plots have in common."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from estimators.job.errors import UnsupportedError
from estimators.results.plots import INK, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, without black, white, and the yellow that is hardly visible on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
#: The colour of each strategy, which is the same in every plot. Items with a different strategy or none are grey.
STRATEGIES = dict(
    zip(
        (
            "mpi", "collective_all_reduce", "parameter_server", "elastic_horovod", "torch_distributed",
            "elastic_torch_distributed",
        ),
        PALETTE,
        strict=True,
    )
)  # fmt: skip
OTHER = "#7F7F7F"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH = 7.0


def figure(rows: int = 1, columns: int = 1, *, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure with the width of a notebook and ``height`` inches, and the figure's axes row by row.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("plots need matplotlib: `fleetfit install plots`, or pip install matplotlib.") from None
    made = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = [made.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
    for one in axes:
        dress(one)
    made.patch.set_alpha(0.0)
    return made, axes


def dress(axes: Axes) -> None:
    """Apply the style of all plots to axes. Numbers have the same form as in tables, such as ``1,280``."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda number, place: f"{number:,.10g}".replace("-", "\u2212"))
    axes.tick_params(colors=INK, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.grid(True, color=INK, alpha=0.18, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0.0)


def whole_numbers(axes: Axes) -> None:
    """Show only whole numbers on the x axis, for axes that show a count."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def label(axes: Axes, *, x: str = "", y: str = "", title: str = "") -> None:
    """Set the title and the labels of the axes. The labels must contain the units."""
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    if title:
        axes.set_title(title, color=INK, fontsize=10, loc="left")


def legend(made: Figure, axes: Axes) -> None:
    """Add one legend for all axes of a figure, beside the axes. The figure becomes wider. Add no legend for a single
    curve.
    """
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return  # a single curve needs no legend
    made.set_figwidth(made.get_figwidth() + 0.5 + 0.065 * max(map(len, names)))
    made.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK)


def nothing(title: str, text: str) -> Plot:
    """Return an empty plot with one line of text that explains why the plot is empty."""
    made, [axes] = figure(height=0.5)
    axes.set_axis_off()
    axes.text(0.0, 0.5, text, transform=axes.transAxes, ha="left", va="center", color=INK, fontsize=9)
    return Plot(made, title, empty=True)


def bar(axes: Axes, place: int, left: float, width: float, colour: str, hatch: str | None, name: str) -> None:
    """Draw one part of a bar that consists of several parts.

    Args:
        axes: The axes of the plot.
        place: The number of the bar.
        left: The left end of the part.
        width: The length of the part.
        colour: The colour of the part.
        hatch: The hatch pattern, or None.
        name: The text in the legend. A name that begins with ``_`` is not shown in the legend.
    """
    axes.barh(
        place, width, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=name
    )


def name_rows(axes: Axes, names: Sequence[str], x: str) -> None:
    """Set the names of a plot's bars, from top to bottom, and the label of the horizontal axis."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(False, axis="y")
    label(axes, x=x)


def say(axes: Axes, text: str) -> None:
    """Show a text that explains why axes have no data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK, fontsize=9, wrap=True)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def colour(place: int) -> str:
    """Return the colour of the item with index ``place``."""
    return PALETTE[place % len(PALETTE)]


class Look(NamedTuple):
    """The colour, dashes and markers of one of several items in a plot.

    Attributes:
        colour: The item's colour.
        number: The item's index among the items of the same colour. The index determines the dashes and markers.
    """

    colour: str
    number: int

    def line(self, points: int) -> dict[str, Any]:
        """Return the arguments for drawing a curve that has ``points`` points."""
        found: dict[str, Any] = {
            "color": self.colour, "linestyle": DASHES[self.number % len(DASHES)], "linewidth": 1.7,
        }  # fmt: skip
        if points <= 30:
            found.update(marker=MARKERS[self.number % len(MARKERS)], markersize=4)
        return found


def look(place: int) -> Look:
    """Return the style of the item with index ``place``."""
    return Look(colour(place), place + place // len(PALETTE))


def looks(strategies: Sequence[str | None]) -> list[Look]:
    """Return the style of each item. The item's strategy determines the colour, which is the same in every plot.

    There are two exceptions, in which each item has a different style: all items have the same strategy, or there are
    too many items of one colour to distinguish them by their dashes.

    Args:
        strategies: The strategy of each item, or None.
    """
    if len(set(strategies)) == 1:
        return [look(place) for place in range(len(strategies))]
    numbers: collections.Counter[str] = collections.Counter()
    found = []
    for strategy in strategies:
        own = STRATEGIES.get(strategy or "", OTHER)
        found.append(Look(own, numbers[own]))
        numbers[own] += 1
    if max(numbers.values(), default=0) > len(DASHES):  # the items of one strategy would not be distinguishable
        return [look(place) for place in range(len(strategies))]
    return found


def short(name: str, limit: int = 40) -> str:
    """Return a name. Shorten the name if it has more than ``limit`` characters."""
    return name if len(name) <= limit else name[: limit - 1] + "…"
