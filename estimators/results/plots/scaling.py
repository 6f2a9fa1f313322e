"""Draw the speed against the number of processes."""

from __future__ import annotations

from estimators.results.comparison.comparison import Comparison, Group, Spread
from estimators.results.plots import INK, Plot, style
from estimators.results.summary import count_text


def draw(comparison: Comparison) -> Plot:
    """Draw a curve for each strategy, and a line for linear scaling. Each model and each instance type has curves of
    its own.
    """
    made, axes = style.figure(1, 2, height=3.3)
    series: dict[str, dict[int, Spread]] = {}
    strategies: dict[str, str | None] = {}
    for group in comparison.groups:
        speed = group.spread("samples_per_second")
        if speed is not None:
            name = _line_of(comparison, group)
            series.setdefault(name, {})[group.first.processes] = speed
            strategies[name] = group.strategy
    counts = sorted({count for found in series.values() for count in found})
    if not counts:
        return style.nothing("Scaling", "no run has recorded its speed")
    alone: dict[str, float] = {}
    singles = [found[1].median for found in series.values() if 1 in found]
    looks = style.looks(list(strategies.values()))
    for look, (name, found) in zip(looks, series.items(), strict=True):
        x = sorted(found)
        style_of = {**look.line(len(x)), "label": style.short(name)}
        y = [found[count].median for count in x]
        axes[0].plot(x, y, **style_of)
        axes[0].fill_between(
            x, [found[count].low for count in x], [found[count].high for count in x], color=look.colour,
            alpha=0.2, linewidth=0,
        )  # fmt: skip
        base = found[1].median if 1 in found else (singles[0] if len(set(singles)) == 1 else None)
        if base:
            alone[name] = base
            axes[1].plot(x, [100 * value / count / base for count, value in zip(x, y, strict=True)], **style_of)
    if alone:
        base = max(alone.values())
        axes[0].plot(counts, [base * count for count in counts], color=INK, linewidth=1, linestyle=":", label="linear")
        axes[1].axhline(100, color=INK, linewidth=1, linestyle=":")
        axes[1].set_ylim(0, max(110.0, axes[1].get_ylim()[1]))
    else:
        style.say(axes[1], "efficiency needs a run with one process")
    axes[0].set_ylim(bottom=0)
    for one in axes:
        if alone or one is axes[0]:
            one.set_xticks(counts)
    style.label(axes[0], x="processes", y="samples/s")
    style.label(axes[1], x="processes" if alone else "", y="scaling efficiency (%)" if alone else "")
    style.legend(made, axes[0])
    return Plot(made, "Scaling")


def _line_of(comparison: Comparison, group: Group) -> str:
    """Return the name of the curve to which a group belongs.

    The name contains the strategy. If the groups have different models or instance types, the name also contains the
    model or the instance type.
    """
    first = group.first
    name = first.strategy or "none"
    kinds = {other.first.instance_type for other in comparison.groups}
    models = {other.first.model.parameters for other in comparison.groups if other.first.model is not None}
    if len(models) > 1 and first.model is not None:
        name += f", {count_text(first.model.parameters)}"
    return f"{name}, {first.instance_type}" if len(kinds) > 1 else name
