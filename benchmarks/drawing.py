"""The plots below the tables of ``RESULTS.md``: ``plots/<name>.svg``, medians with their 95 % intervals and the bars.

``python -m benchmarks.drawing`` draws them again from ``results/*.json``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.results.plots import INK, Plot, style

_HERE = Path(__file__).resolve().parent
PLOTS = _HERE / "plots"

#: Verdict -> how its point looks: the marker tells what the colour does.
_LOOKS = {
    "met": (style.PALETTE[2], "o"),
    "open": (style.PALETTE[1], "D"),
    "missed": (style.PALETTE[5], "X"),
    None: (style.PALETTE[0], "s"),
}
_LEGEND = ("bar met", "bar open", "bar missed", "no bar", "the bar")
#: Letters of a row's name on one line.
_LETTERS = 46

#: A row of a result, as ``harness.Row.to_dict`` gives it.
Line = Mapping[str, Any]


def picture(name: str, rows: Sequence[Line], folder: Path = PLOTS) -> Path:
    """Draw a benchmark's plot.

    Args:
        name: The benchmark.
        rows: Its rows, from :meth:`benchmarks.harness.Row.to_dict`.
        folder: Where it goes.

    Returns:
        The file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    folder.mkdir(exist_ok=True)
    # The same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        drawn = _SPECIAL.get(name, intervals)(rows)
        return drawn.save(folder / f"{name}.svg")


def intervals(rows: Sequence[Line]) -> Plot:
    """A point with its interval for each row, a panel for each unit, and a tick at the bar."""
    panels: dict[str, list[Line]] = {}
    for row in rows:
        panels.setdefault(row["unit"], []).append(row)
    heights = [0.55 + sum(_height(row) for row in inside) for inside in panels.values()]
    made, _ = style.figure(height=0.45 + sum(heights))
    made.clear()
    found = made.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (unit, inside) in zip(found[:, 0], panels.items(), strict=True):
        style.dress(axes)
        _panel(axes, inside)
        style.label(axes, x=unit or "ratio")
    _legend(made, found[:, 0])
    return Plot(made, "medians and 95 % intervals")


def _height(row: Line) -> float:
    return 0.14 + 0.14 * len(_wrapped(row["what"]))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _LETTERS)


def _panel(axes: Any, rows: Sequence[Line]) -> None:
    places, top = [], 0.0
    for row in rows:
        places.append(top + _height(row) / 2)
        top += _height(row)
    ends = [end for row in rows for end in (row["estimate"]["low"], row["estimate"]["high"])]
    limits = [row["bar"]["limit"] for row in rows if row["bar"]]
    low, high = min(0.0, *ends), max([*ends, *limits])
    for place, row in zip(places, rows, strict=True):
        estimate, verdict = row["estimate"], row.get("verdict")
        colour, marker = _LOOKS[verdict]
        axes.plot(
            [estimate["low"], estimate["high"]], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt"
        )
        axes.plot(
            estimate["value"], place, color=colour, marker=marker, markersize=6.5, linestyle="none",
            label=f"bar {verdict}" if verdict else "no bar",
        )  # fmt: skip
        if row["bar"]:
            axes.plot(
                [row["bar"]["limit"]] * 2, [place - 0.13, place + 0.13], color=INK, linewidth=1.8, label="the bar"
            )
        # In a column of its own: beside the point it would be taken for the bar's.
        text = f"{_number(estimate['value'])} {row['unit']}".rstrip()
        axes.text(1.015, place, text, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=8)
    axes.set_yticks(places, ["\n".join(_wrapped(row["what"])) for row in rows], fontsize=7.5)
    axes.set_ylim(top, 0.0)
    if min(ends) > 0 and max(ends) > 10 * min(ends) and not rows[0]["unit"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(low - 0.03 * (high - low if low else 0.0), high + 0.05 * (high - low))
    axes.grid(False, axis="y")


def _legend(made: Any, panels: Sequence[Any]) -> None:
    """One legend for all panels: each name once."""
    found = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = sorted(found, key=_LEGEND.index)
    handles = [found[name] for name in names]
    made.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)


def _curves(rows: Sequence[Line], pattern: str, x: str, y: str, *, sizes: bool) -> Plot:
    """Rows whose names hold a way, a number and a panel, as curves with their intervals."""
    found: dict[str, dict[str, list[tuple[float, Line]]]] = {}
    for row in rows:
        match = re.fullmatch(pattern, row["what"])
        if match is None:
            continue
        named = match.groupdict()
        found.setdefault(named.get("panel", ""), {}).setdefault(named["way"], []).append((float(named["x"]), row))
    made, panels = style.figure(1, max(1, len(found)), height=3.3)
    for axes, (title, ways) in zip(panels, found.items(), strict=False):
        for place, (way, points) in enumerate(ways.items()):
            points.sort(key=lambda point: point[0])
            at, values = [point[0] for point in points], [point[1]["estimate"] for point in points]
            errors = [[e["value"] - e["low"] for e in values], [e["high"] - e["value"] for e in values]]
            axes.errorbar(
                at, [e["value"] for e in values], yerr=errors, label=way, capsize=3, **style.look(place).line(len(at))
            )
        if sizes:
            axes.set_xscale("log", base=2)
        ticks = sorted({point[0] for points in ways.values() for point in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        style.label(axes, x=x, y=y if axes is panels[0] else "", title=title)
    style.legend(made, panels[0])
    return Plot(made, y)


def _strategies(rows: Sequence[Line]) -> Plot:
    pattern = r"(?P<way>\w+) × (?P<x>\d+), (?P<panel>.+)"
    return _curves(rows, pattern, "processes", "samples/s: median, 95 % interval", sizes=False)


def _allreduce(rows: Sequence[Line]) -> Plot:
    pattern = r"(?P<way>.+), (?P<x>\d+) MB"
    return _curves(rows, pattern, "size, MB", "bus bandwidth, MB/s: median, 95 % interval", sizes=True)


def _links(rows: Sequence[Line]) -> Plot:
    """The time of a step over the hosts, by size; a curve for each link, and its bound."""
    found: dict[str, dict[str, list[tuple[int, Line]]]] = {}
    for row in rows:
        if match := re.fullmatch(r"(?P<hosts>\d+) hosts, (?P<link>.+); (?P<size>.+)", row["what"]):
            found.setdefault(match["size"], {}).setdefault(match["link"], []).append((int(match["hosts"]), row))
    made, panels = style.figure(1, max(1, len(found)), height=3.3)
    for axes, (size, curves) in zip(panels, found.items(), strict=False):
        for place, (name, points) in enumerate(curves.items()):
            points.sort(key=lambda point: point[0])
            at, values = [hosts for hosts, _ in points], [row["estimate"] for _, row in points]
            errors = [[e["value"] - e["low"] for e in values], [e["high"] - e["value"] for e in values]]
            look = {**style.look(place).line(len(at)), "linestyle": "-"}
            axes.errorbar(at, [e["value"] for e in values], yerr=errors, label=name, capsize=3, **look)
            bounds = [row["beside"]["bound, ms"] for _, row in points]
            axes.plot(at, bounds, color=style.colour(place), linestyle=style.DASHES[2], label=f"{name}: bound")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        ticks = sorted({hosts for points in curves.values() for hosts, _ in points})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        style.label(axes, x="hosts", y="time of a step, ms" if axes is panels[0] else "", title=size)
    style.legend(made, panels[0])
    return Plot(made, "time of a step, and the bound of a ring")


_SPECIAL = {"strategies": _strategies, "allreduce": _allreduce, "links": _links}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def link(name: str) -> str:
    """The line of ``RESULTS.md`` that shows the plot."""
    return f"![{name}: medians and 95 % intervals](plots/{name}.svg)"


def main() -> int:
    """Draw all plots from the recorded results, and show each below its table."""
    from benchmarks import harness

    text = harness.TABLE.read_text(encoding="utf-8")
    for file in sorted(harness.RESULTS.glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        if not data.get("rows"):
            continue
        print(picture(file.stem, data["rows"]).relative_to(_HERE.parent))
        begin, end = text.find(f"<!-- {file.stem}: begin -->"), text.find(f"<!-- {file.stem}: end -->")
        if begin >= 0 and link(file.stem) not in text:
            after = text.rindex("\n|", begin, end) + 1
            after = text.index("\n", after)
            text = f"{text[:after]}\n\n{link(file.stem)}{text[after:]}"
    harness.TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
