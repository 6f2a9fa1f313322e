"""Display a job that has ended, as a small table on a terminal or as HTML in a notebook."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimators.job import fleets
from estimators.job.secrets import mask_value
from estimators.job.text import columns_of, visible
from estimators.results.html import STATE_COLOURS, render
from estimators.results.summary import number_text, seconds_text

if TYPE_CHECKING:
    from estimators.job.settings import Settings
    from estimators.results.result import Result

_BOLD, _RESET = "\x1b[1m", "\x1b[0m"
_STATUS_COLOURS = {"Completed": "\x1b[32m", "Failed": "\x1b[31m", "Stopped": "\x1b[33m", "Stopping": "\x1b[33m"}

#: The label of the row that contains sentences. Each sentence begins on a new line.
_WARNINGS = "warnings"

#: Settings that are not shown because their values are objects of other libraries.
_NOT_SHOWN = ("sagemaker_session",)

#: The largest number of metrics that are listed. Other metrics are only counted.
_METRICS_SHOWN = 12


def rows(result: Result) -> list[tuple[str, list[str]]]:
    """Return the label and the lines of each row of the job's table."""
    table: list[tuple[str, list[str]]] = []
    known = [
        f"{name.replace('_', ' ')} {seconds_text(seconds)}"
        for name, seconds in result.phases.items()
        if seconds is not None
    ]
    if known:
        table.append(("phases", known))
    if result.seconds is not None:
        table.append(("total", [seconds_text(result.seconds)]))
    if result.billable_s is not None and (result.spot or not fleets.is_own(result.instance_type)):
        billed = [f"{result.billable_s:,.0f} s billed"]
        if result.training_s is not None:
            billed.insert(0, f"{result.training_s:,.0f} s of training")
        if result.spot and result.spot_savings is not None:
            billed.append(f"{result.spot_savings:.1f} % saved by spot capacity")
        table.append(("bill", billed))
    if result.endings:
        table.append(("attempts", list(result.endings)))
    if result.samples_per_second is not None:
        speed = [f"{number_text(result.samples_per_second)} samples/s"]
        if result.steps_per_second is not None:
            speed.insert(0, f"{number_text(result.steps_per_second)} steps/s")
        if result.global_batch_size is not None:
            speed.append(f"global batch {result.global_batch_size}")
        table.append(("speed", speed))
    # Omit the metric `samples_per_second`, which has the speed of the last epoch. The row "speed" has the speed of the
    # whole job.
    metrics = {name: value for name, value in result.final_metrics.items() if name != "samples_per_second"}
    if metrics:
        shown = [f"{name} {number_text(value)}" for name, value in list(metrics.items())[:_METRICS_SHOWN]]
        more = len(metrics) - len(shown)
        table.append(("metrics", [*shown, f"and {more} more"] if more > 0 else shown))
    if result.warnings:
        table.append((_WARNINGS, list(result.warnings)))
    for label, value in (("model", result.model_data), ("checkpoints", result.checkpoints), ("logs", result.logs)):
        if value:
            table.append((label, [value]))
    return table


def job_table(result: Result, *, colour: bool = False, columns: int = 100) -> str:
    """Return the job's table as text. The text ends with a newline.

    Args:
        result: The job's result.
        colour: Whether to use ANSI colours.
        columns: The width of the terminal in columns. Paths are never cut, so that users can copy them.
    """
    table = rows(result)
    label_width = max((len(label) for label, _ in table), default=0)
    title = f"{result.job_name}  {_status_text(result)}"
    lines: list[str] = []
    for label, items in table:
        room = max(20, columns - label_width - 4)
        joined = " · ".join(items)
        wrapped = _wrap(items, room) if len(joined) > room and len(items) > 1 else [joined]
        if label == _WARNINGS:
            wrapped = [line for item in items for line in textwrap.wrap(item, room)]
        for index, text in enumerate(wrapped):
            lines.append(f"  {label if index == 0 else '':<{label_width}}  {text}")
    width = min(columns, max([columns_of(title), *(columns_of(line) for line in lines)]))
    if colour:
        status = f"{_STATUS_COLOURS.get(result.status, '')}{_status_text(result)}{_RESET}"
        title = f"{_BOLD}{result.job_name}{_RESET}  {status}"
    rule = "─" * width
    return visible("\n".join([rule, title, *lines, rule]), colours=colour) + "\n"


def job_html(result: Result) -> str:
    """Return the job's table as HTML that uses the colours of the surrounding page.

    The table is readable in light and dark themes.
    """
    return render("results/templates/job", **job_values(result))


def job_values(result: Result) -> dict[str, Any]:
    """Return the values for the template of the job's table."""
    return {
        "job": result.job_name,
        "status": _status_text(result),
        "colour": STATE_COLOURS.get(result.status, "inherit"),
        "reason": result.failure_reason,
        "rows": rows(result),
    }


def estimator_html(kind: str, settings: Settings, job: str | None) -> str:
    """Return an estimator as HTML: the settings that differ from the defaults, and the name of the latest job.

    Args:
        kind: The name of the estimator's class.
        settings: The estimator's settings.
        job: The name of the estimator's latest job. None if there is no job.
    """
    shown = [
        (field.name, [_value_text(mask_value("", value) if isinstance(value, Mapping | tuple) else value)])
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != _default(field) and field.name not in _NOT_SHOWN
    ]
    if job is not None:
        shown.append(("latest job", [job]))
    return render("results/templates/estimator", kind=kind, rows=shown)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {text}" for name, text in value.items())
    if callable(value):
        return f"{getattr(value, '__name__', type(value).__name__)}()"
    return value if isinstance(value, str) else repr(value)


def _status_text(result: Result) -> str:
    if result.secondary_status and result.secondary_status != result.status:
        return f"{result.status} ({result.secondary_status})"
    return result.status


def _wrap(items: list[str], room: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        if lines and columns_of(lines[-1]) + 3 + columns_of(item) <= room:
            lines[-1] += f" · {item}"
        else:
            lines.extend(textwrap.wrap(item, room) or [""])
    return lines
