"""Render a result as HTML that uses the colours of the surrounding page, for notebooks and reports. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from estimators.results.display import job_values
from estimators.results.html import render
from estimators.results.summary import bytes_text, count_text, dollars_text, percent_text, time_text

if TYPE_CHECKING:
    from estimators.results.result import RankResult, Result


def result_html(result: Result) -> str:
    """Return the job's table and additional facts as HTML: steps, ranks, exchanged bytes, cost, provenance."""
    provenance = ""
    if result.provenance or result.hyperparameters:
        known = {"hyperparameters": dict(result.hyperparameters), **result.provenance}
        provenance = json.dumps(known, indent=1, ensure_ascii=False, default=str)
    return render(
        "results/templates/result",
        **job_values(result),
        facts=[(name, [text]) for name, text in facts(result)],
        ranks=[_rank(rank) for rank in result.ranks],
        provenance=provenance,
    )


def facts(result: Result) -> list[tuple[str, str]]:
    """Return facts that the job's table does not contain, such as step times, exchanged bytes and cost. Each fact is a
    label and a text.
    """
    times = result.step_times
    found: list[tuple[str, str]] = []
    if times.count:
        shown = [("median", 0.5), ("95 %", 0.95), ("99 %", 0.99)]
        text = ", ".join(f"{name} {time_text(times.quantile(share))}" for name, share in shown)
        found.append(("steps", f"{text}, longest {time_text(times.longest_s)}"))
    if result.model is not None:
        text = f"{count_text(result.model.parameters)} parameters"
        found.append(("model", f"{text}, {bytes_text(result.model.gradient_bytes)} of gradients per step"))
    if result.link_bytes is not None:
        text = f"at least {bytes_text(result.link_bytes)} per step and rank"
        if result.exchange_s is not None and result.bus_bandwidth is not None:
            text += f"; {time_text(result.exchange_s)} of waiting for it, {bytes_text(result.bus_bandwidth)}/s"
        found.append(("exchanged", text))
    if (slow := result.straggler) is not None:
        found.append(("straggler", f"rank {slow.rank} on {slow.host}: {time_text(slow.own_s)} of computing per step"))
    if result.checkpointing is not None:
        kept = result.checkpointing
        text = f"{kept.count} saved, {time_text(kept.blocked_s)} of paused training, {time_text(kept.write_s)} writing"
        found.append(("checkpoints", text + (f", {kept.failed} failed" if kept.failed else "")))
    cost = result.cost()
    if cost is not None:
        found.append(("cost", f"{dollars_text(cost.total)} ({cost.source}, ${cost.per_hour:g} per host and hour)"))
    if result.spot and result.spot_savings is not None:
        found.append(("spot savings", percent_text(result.spot_savings / 100)))
    return found


def end_text(rank: RankResult) -> str:
    """Return a text about the end of a rank's process. Return ``–`` for a process that has not ended."""
    if rank.signal is not None:
        return f"signal {rank.signal}"
    return "–" if rank.exit_code is None else f"exit code {rank.exit_code}"


def _rank(rank: RankResult) -> tuple[str, ...]:
    return (
        str(rank.rank), rank.host, time_text(rank.steps.quantile(0.5)), time_text(rank.own_s),
        time_text(rank.exchange_s), bytes_text(rank.peak_memory_bytes), end_text(rank),
    )  # fmt: skip
