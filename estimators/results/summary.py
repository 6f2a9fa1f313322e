"""Format a result as one row of a table, and numbers as texts. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.results.result import Result


def summary(result: Result) -> dict[str, Any]:
    """Return the values of one row of a comparison's table, by name. Unknown values are None. Times are in seconds,
    memory and exchanged data in bytes.
    """
    times = result.step_times
    cost = result.cost()
    straggler = result.straggler
    return {
        "job": result.job_name,
        "status": result.status,
        "strategy": result.strategy or "none",
        "instance_type": result.instance_type,
        "hosts": result.hosts,
        "processes": result.processes,
        "global_batch_size": result.global_batch_size,
        "seconds": result.seconds,
        **{f"{name}_s": seconds for name, seconds in result.phases.items()},
        "to_first_step_s": result.to_first_step_s,
        "steps": result.steps,
        "steps_per_second": result.steps_per_second,
        "samples_per_second": result.samples_per_second,
        "step_median_s": times.quantile(0.5),
        "step_p95_s": times.quantile(0.95),
        "step_p99_s": times.quantile(0.99),
        "step_longest_s": times.longest_s if times.count else None,
        "parameters": result.model.parameters if result.model is not None else None,
        "reduced_bytes": result.reduced_bytes,
        "link_bytes": result.link_bytes,
        "exchange_s": result.exchange_s,
        "bus_bandwidth": result.bus_bandwidth,
        "peak_memory_bytes": result.peak_memory_bytes,
        "checkpoints": result.checkpointing.count if result.checkpointing is not None else None,
        "checkpoint_blocked_s": result.checkpointing.blocked_s if result.checkpointing is not None else None,
        "cost": cost.total if cost is not None else None,
        "spot_savings": result.spot_savings,
        "straggler": straggler.rank if straggler is not None else None,
        **{f"metric_{name}": value for name, value in result.final_metrics.items()},
    }


def number_text(value: float | None) -> str:
    """Format a number with four significant digits, such as ``0.974``. Return ``–`` for None.

    Numbers from 1,000 on are rounded to whole numbers, such as ``7,758``.
    """
    if value is None:
        return "–"
    if math.isfinite(value) and abs(value) < 1e15 and (abs(value) >= 999.95 or value == int(value)):
        return f"{value or 0.0:,.0f}"  # avoids minus zero
    return f"{value:.4g}"


def quantity_text(value: float | None, unit: str) -> str:
    """Return a number with its unit as text. Return ``–`` if the number is None.

    Args:
        value: The number, or None.
        unit: The unit: ``s``, ``bytes``, ``count``, ``$`` or ``share`` (a fraction, shown in percent). Empty for no
            unit.
    """
    match unit:
        case "s":
            return time_text(value)
        case "bytes":
            return bytes_text(value)
        case "count":
            return count_text(value)
        case "$":
            return dollars_text(value)
        case "share":
            return percent_text(value)
    return number_text(value)


def bytes_text(count: float | None) -> str:
    """Format a number of bytes in decimal units, such as ``1.5 MB``. Return ``–`` for None."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB"), whole=True)


def count_text(count: float | None) -> str:
    """Format a count with a decimal prefix, such as ``12.6 k`` or ``138 M``. Return ``–`` for None."""
    return _scaled(count, ("", "k", "M", "G", "T"))


def _scaled(count: float | None, units: tuple[str, ...], *, whole: bool = False) -> str:
    if count is None:
        return "–"
    power = next((power for power in range(4) if abs(count) < 999.5 * 1000.0**power), 4)
    value = count / 1000.0**power
    return f"{value:.0f} {units[0]}" if whole and not power else f"{value:.3g} {units[power]}".rstrip()


def seconds_text(seconds: float) -> str:
    """Format a duration in seconds as text, such as ``0.21 s``, ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def time_text(seconds: float | None) -> str:
    """Format a duration in seconds as text, such as ``850 µs``, ``12.3 ms``, ``1.5 s`` or ``4 min 05 s``.

    Return ``–`` for None.
    """
    if seconds is None:
        return "–"
    if 0 < seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return seconds_text(seconds)


def percent_text(share: float | None) -> str:
    """Format a fraction as percent, such as ``93 %`` for 0.93. Return ``–`` for None."""
    return "–" if share is None else f"{round(share * 100) or 0} %"


def dollars_text(dollars: float | None) -> str:
    """Format US dollars, such as ``$12.30`` or ``$0.0042``. Return ``–`` for None."""
    if dollars is None:
        return "–"
    return f"${dollars:,.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.2g}"
