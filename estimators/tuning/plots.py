"""Draw the plots of a tuning job: history, parallel coordinates, importance, learning curves, shared hosts."""

from __future__ import annotations

import math
from typing import Any

from estimators.records.record import JobRecord, jobs_folder
from estimators.results.plots import INK, Plot, style
from estimators.tuning import ranges
from estimators.tuning.record import TuningRecord

#: The largest number of curves in a plot.
_MOST_CURVES = 64
#: For each kind of event, the change of the number of a job's hosts.
_MOVES = {"host_added": 1, "host_left": -1, "host_lost": -1}
#: The largest number of trials in a legend. A longer legend would hide the plot.
_MOST_NAMED = 12


def history(record: TuningRecord) -> Plot:
    """Draw the value of each trial's objective in the order of the trials, and the best value so far."""
    spec = record.spec
    rows = [row for row in record.trials() if row["value"] is not None]
    if not rows:
        return style.nothing("Trials", f"no trial has reported {spec.objective} yet")
    made, [axes] = style.figure(height=2.6)
    for place, state in enumerate(("Completed", "Pruned")):
        some = [row for row in rows if row["state"] == state]
        numbers, values = [row["number"] + 1 for row in some], [row["value"] for row in some]
        if some:
            axes.plot(numbers, values, "o" if state == "Completed" else "x", color=style.colour(place), label=state)
    best: list[tuple[int, float]] = []
    for row in rows:
        if row["state"] == "Completed" and (not best or spec.better(row["value"], best[-1][1])):
            best.append((row["number"] + 1, row["value"]))
    if best:
        last = rows[-1]["number"] + 1
        axes.step(
            [number for number, _ in best] + [last], [value for _, value in best] + [best[-1][1]],
            where="post", color=style.colour(2), linewidth=1.7, label="best so far",
        )  # fmt: skip
    style.whole_numbers(axes)
    style.label(axes, x="trial", y=spec.objective, title="Trials")
    style.legend(made, axes)
    return Plot(made, "Trials")


def parallel(record: TuningRecord) -> Plot:
    """Draw each trial as a line across its hyperparameters to its value. Lines of better trials are more opaque."""
    spec = record.spec
    rows = [row for row in record.trials() if row["value"] is not None and row["state"] in ("Completed", "Pruned")]
    if len(rows) < 2:
        return style.nothing("Parallel coordinates", "two trials with a value are needed")
    names = [name for name, _, _ in ranges.items(spec.parameter_ranges)]
    made, [axes] = style.figure(height=3.4)
    columns: list[list[float]] = []
    ends: list[tuple[str, str]] = []
    for name, kind, item in ranges.items(spec.parameter_ranges):
        texts = [row["values"].get(name, "") for row in rows]
        if kind == "Categorical":
            choices = list(item["Values"])
            columns.append([choices.index(text) / max(1, len(choices) - 1) for text in texts])
            ends.append((choices[0].strip('"'), choices[-1].strip('"') if len(choices) > 1 else ""))
            continue
        low, high = float(item["MinValue"]), float(item["MaxValue"])
        columns.append([_place(float(text), low, high, item.get("ScalingType") or "Auto") for text in texts])
        ends.append((f"{low:g}", f"{high:g}"))
    values = [row["value"] for row in rows]
    least, most = min(values), max(values)
    columns.append([_place(value, least, most, "Linear") for value in values])
    ends.append((f"{least:.4g}", f"{most:.4g}"))
    order = sorted(range(len(rows)), key=lambda place: values[place], reverse=not spec.maximize)
    for rank, place in enumerate(order):
        share = rank / max(1, len(order) - 1)
        axes.plot(
            range(len(columns)), [column[place] for column in columns],
            color=style.colour(0 if share > 0.8 else 4), alpha=0.15 + 0.75 * share**2, linewidth=0.8 + 1.2 * share,
        )  # fmt: skip
    axes.set_xticks(range(len(columns)), [style.short(name, 18) for name in (*names, spec.objective)])
    axes.set_yticks([])
    axes.set_ylim(-0.12, 1.12)
    for place, (low_text, high_text) in enumerate(ends):
        axes.axvline(place, color=INK, linewidth=0.8, alpha=0.6)
        for height, text in ((-0.09, low_text), (1.06, high_text)):
            axes.text(place, height, style.short(text, 12), ha="center", color=INK, fontsize=7)
    axes.grid(False)
    style.label(axes, title="Parallel coordinates (blue: the best fifth)")
    return Plot(made, "Parallel coordinates")


def importance(record: TuningRecord) -> Plot:
    """Draw the fraction of the objective's variance that each hyperparameter explains."""
    title = "Importance"
    try:
        from estimators.tuning import search
    except ImportError:
        return style.nothing(title, "importance needs Optuna: `fleetfit install tuning`")
    found = search.importances(record.spec, record.trials())
    if not found:
        return style.nothing(title, "importance needs more completed trials")
    made, [axes] = style.figure(height=0.9 + 0.3 * len(found))
    names = sorted(found, key=lambda name: found[name])
    axes.barh(range(len(names)), [found[name] for name in names], color=style.colour(0))
    axes.set_yticks(range(len(names)), [style.short(name, 24) for name in names])
    style.label(axes, x="share of the metric's variance", title=title)
    return Plot(made, title)


def curves(record: TuningRecord) -> Plot:
    """Draw each trial's reported values of the objective."""
    spec = record.spec
    rows = [row for row in record.trials() if (row["reports"] or 0) > 1][-_MOST_CURVES:]
    if not rows:
        return style.nothing("Learning curves", f"no trial has reported {spec.objective} more than once")
    best = record.status().get("Fleetfit", {}).get("best")
    made, [axes] = style.figure(height=2.8)
    for row in rows:
        values = reported(record, row)
        if len(values) < 2:
            continue
        x = range(1, len(values) + 1)
        if row["number"] == best:
            axes.plot(x, values, color=style.colour(5), linewidth=2.2, zorder=3, label="the best")
        else:
            pruned = row["state"] == "Pruned"
            axes.plot(x, values, color=style.colour(1 if pruned else 0), linewidth=0.9, alpha=0.6)
    style.whole_numbers(axes)
    style.label(axes, x="values reported", y=spec.metric, title="Learning curves")
    style.legend(made, axes)
    return Plot(made, "Learning curves")


def fleet(record: TuningRecord) -> Plot:
    """Draw how many hosts of a shared fleet each trial had over time."""
    title = "The fleet's hosts"
    found = hosts_over_time(record)
    if not found:
        return style.nothing(title, "no trial has had hosts yet")
    ends = sorted({second for rows in found.values() for second, _ in rows})
    heights = [
        [next((hosts for at, hosts in reversed(rows) if at <= second), 0) for second in ends] for rows in found.values()
    ]
    made, [axes] = style.figure(height=2.8)
    axes.stackplot(
        ends, heights, step="post", labels=[f"trial {number + 1}" for number in found], edgecolor=INK, linewidth=0.3,
        colors=[style.colour(place) for place in range(len(found))], alpha=0.7,
    )  # fmt: skip
    assert record.spec.fleet is not None
    axes.axhline(record.spec.fleet.hosts, color=INK, linewidth=0.8)
    style.label(axes, x="seconds", y="hosts", title=title)
    if len(found) <= _MOST_NAMED:
        style.legend(made, axes)
    return Plot(made, title)


def hosts_over_time(record: TuningRecord) -> dict[int, list[tuple[float, int]]]:
    """Return the number of hosts that each trial had over time. The numbers are read from the records of the trials'
    jobs.

    Returns:
        A list of pairs for each trial, by the trial's number. Each pair has a time, in seconds since the start of the
        tuning job's first host, and the number of hosts from then on. The number is 0 at the trial's end. A trial is
        omitted if the record of its job has been removed.
    """
    changes: dict[int, list[tuple[int, int]]] = {}
    for row in record.trials():
        job = JobRecord(jobs_folder(record.home) / row["job"])
        rows: list[tuple[int, int]] = []
        attempt = 0
        for event in job.events():
            if event.kind == "process_started" and (not rows or event.attempt != attempt):
                attempt = event.attempt
                rows.append((event.time_ns, int(job.read_request()["ResourceConfig"]["InstanceCount"])))
            elif event.kind in _MOVES and rows:
                rows.append((event.time_ns, rows[-1][1] + _MOVES[event.kind]))
            last = event.time_ns
        if rows:
            changes[int(row["number"])] = [*rows, (last, 0)] if row["state"] != "Running" else rows
    first = min((rows[0][0] for rows in changes.values()), default=0)
    return {number: [((at - first) / 1e9, hosts) for at, hosts in rows] for number, rows in changes.items()}


def reported(record: TuningRecord, row: dict[str, Any]) -> list[float]:
    """Return the values of the objective that a trial reported.

    Return an empty list if the record of the trial's job has been removed.
    """
    from estimators.tuning.trials import Follower

    job = JobRecord(jobs_folder(record.home) / row["job"])
    return [value for value in Follower(job, record.spec.metric).poll() if math.isfinite(value)]


def _place(value: float, low: float, high: float, scaling: str) -> float:
    if high <= low:
        return 0.5
    if scaling == "ReverseLogarithmic":
        return 1.0 - _place(1.0 - value, 1.0 - high, 1.0 - low, "Logarithmic")
    if ranges.is_logarithmic(scaling, low, high):
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)
