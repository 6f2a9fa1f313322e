"""Display a tuning job: as lines or a table on a terminal, as HTML in a notebook, and as an HTML file."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.client.printing import say, write_text
from estimators.job.errors import FleetfitError, TrainingJobError, TuningJobError
from estimators.job.text import columns_of, visible
from estimators.records.private_files import explained
from estimators.results.html import STATE_COLOURS, render
from estimators.results.summary import number_text, seconds_text
from estimators.tuning.config import TuningSpec
from estimators.tuning.record import TuningRecord, best_row, is_terminal

if TYPE_CHECKING:
    from estimators.results.plots import Plot

#: The largest number of rows that a notebook shows. The data frame has all rows.
_MOST_ROWS = 30
#: The maximum number of trials that a terminal shows while they change.
_LIVE_ROWS = 15
#: The columns of the table on a terminal that are omitted if the table is too wide, the least important one first.
_DROPPED = ("job", "reports", "time")
#: The title of the column that contains all hyperparameters.
_TOGETHER = "hyperparameters"


def trial_line(row: dict[str, Any], place: int, spec: TuningSpec, *, best: bool = False) -> str:
    """Return one line about a trial that has ended.

    Args:
        row: The trial's row in the record.
        place: The trial's place among the tuning job's trials, counted from 1. The place may differ from the trial's
            number, because trials that a warm start adds have the first numbers.
        spec: The tuning job's spec.
        best: Whether the trial is the best so far.
    """
    values = ", ".join(f"{name}={_value(text)}" for name, text in row["values"].items())
    told = f"{spec.objective} {number_text(row['value'])}" if row["value"] is not None else ""
    why = f": {row['reason']}" if row["reason"] else ""
    star = "  ← best so far" if best else ""
    return visible(f"{place:>3}/{spec.limit}  {row['state']:<9}  {told:<24}  {values}{why}{star}")


def held_up_by(record: TuningRecord) -> str | None:
    """Return what currently hinders a tuning job. Return None if nothing hinders it, or if it has ended."""
    status = record.status()
    own = status.get("Fleetfit", {})
    if is_terminal(status):
        return None
    if own.get("waiting"):
        return f"no trial is started: {own['waiting']} The tuning job goes on when there is room."
    if own.get("not_shared"):
        return f"hosts could not be moved: {own['not_shared']} fleetfit will try again."
    if own.get("unanswered"):
        return f"{own['unanswered']} The tuning job goes on at SageMaker, and fleetfit will ask again."
    return None


def summary(record: TuningRecord) -> str:
    """Return one line about the progress of a tuning job."""
    status, spec = record.status(), record.spec
    jobs, objective = status["TrainingJobStatusCounters"], status["ObjectiveStatusCounters"]
    text = f"{spec.strategy}: {sum(jobs.values())} of {spec.limit} trials"
    for name, count in (("running", jobs["InProgress"]), ("stopped early", jobs["Stopped"])):
        text += f", {count} {name}" if count else ""
    text += f", {objective['Failed']} without a value of {spec.objective}" if objective["Failed"] else ""
    end = status.get("HyperParameterTuningEndTime")
    if end is not None:
        text += f"; {seconds_text(end - status['CreationTime'])}"
    return text


def failure(record: TuningRecord, status: Mapping[str, Any]) -> TuningJobError:
    """Return the error for a tuning job that has failed. On the user's hosts, the message ends with details of the last
    failed trial.
    """
    text = f"tuning job {record.name!r} failed: {status.get('FailureReason')}"
    failed = [row for row in record.trials() if row["state"] == "Failed"]
    if failed and not record.is_managed:
        from estimators.client.training_job import TrainingJob

        with contextlib.suppress(FleetfitError, OSError):
            job = TrainingJob.attach(max(failed, key=lambda row: row["ended"] or 0.0)["job"], record.home)
            if job.failure is not None:
                text += "\n" + str(TrainingJobError(job, job.failure)).partition("\n")[2]
    return TuningJobError(text.rstrip("\n"))


def sorted_rows(record: TuningRecord) -> list[dict[str, Any]]:
    """Return the trials in the order in which a table shows them.

    Completed trials are first, with the best trial at the top. The next trials are the running trials. The pruned,
    stopped and failed trials are last.
    """
    spec = record.spec
    sign = -1.0 if spec.maximize else 1.0

    def place(row: dict[str, Any]) -> tuple[int, float, int]:
        if row["state"] == "Completed":
            return (0, sign * row["value"], row["number"])
        order = {"Running": 1, "Pruned": 2, "Stopped": 3, "Failed": 4}[row["state"]]
        value = row["value"] if row["value"] is not None else row["last"]
        return (order, sign * value if value is not None else 0.0, row["number"])

    return sorted(record.trials(), key=place)


def cells(record: TuningRecord, rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of a table of trials."""
    spec = record.spec
    names = list(spec.ranges)
    shared = ["hosts"] if spec.fleet is not None else []
    head = ["trial", "state", spec.objective, *names, *shared, "reports", "time", "job"]
    found = []
    for row in rows:
        value = row["value"] if row["value"] is not None else row["last"]
        took = seconds_text(row["ended"] - row["created"]) if row["ended"] is not None else ""
        found.append(
            [
                str(row["number"] + 1), row["state"], number_text(value) if value is not None else "–",
                *(_value(row["values"].get(name, "")) for name in names),
                *(str(row.get("hosts") or "–") for _ in shared), str(row["reports"] or "–"), took, row["job"],
            ]
        )  # fmt: skip
    return head, found


def study_html(record: TuningRecord, *, plots: bool | None = None) -> str:
    """Return a tuning job as an HTML fragment that uses the colours of the surrounding page.

    Args:
        record: The tuning job's record.
        plots: Whether to draw plots. With None, plots are drawn if the tuning job has ended and matplotlib is
            installed.
    """
    status = record.status()
    rows = sorted_rows(record)
    head, table = cells(record, rows[:_MOST_ROWS])
    if plots is None:
        plots = is_terminal(status) and _can_draw()
    reasons = [f"{row['job']}: {row['reason']}" for row in rows if row["state"] == "Failed"][:5]
    notes = [*reasons, *([f"and {len(rows) - _MOST_ROWS} more"] if len(rows) > _MOST_ROWS else [])]
    state = str(status["HyperParameterTuningJobStatus"])
    return render(
        "tuning/templates/study",
        name=record.name,
        state=state,
        colour=STATE_COLOURS.get(state, "inherit"),
        why=status.get("FailureReason") or status.get("Fleetfit", {}).get("ended_because") or "",
        summary=summary(record),
        head=[head[-1], *head[:-1]],
        rows=[[job, *others] for *others, job in table],
        faint=[place for place, row in enumerate(rows[:_MOST_ROWS]) if row["state"] not in ("Completed", "Running")],
        notes=notes,
        plots=[plot.svg() for plot in draw_all(record) if not plot.empty] if plots else [],
    )


def draw_all(record: TuningRecord) -> list[Plot]:
    """Draw all plots of a tuning job."""
    from estimators.tuning.plots import curves, fleet, history, importance, parallel

    shared = [fleet] if record.spec.fleet is not None else []
    return [kind(record) for kind in (history, parallel, importance, curves, *shared)]


def report(record: TuningRecord, path: str | Path) -> Path:
    """Write a tuning job with its plots to one HTML file that needs no external resources. Return the path of the file.

    Args:
        record: The tuning job's record.
        path: The path of the file.
    """
    when = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    file = Path(path)
    html = render("tuning/templates/page", title=record.name, when=when, study=study_html(record, plots=True))
    with explained(file, "write"):
        file.write_text(html, encoding="utf-8")
    return file


class TrialLines:
    """The output for a caller that waits for a tuning job: a line for each trial that ends, and a line if something
    hinders the tuning job, such as a full disk.

    Args:
        record: The tuning job's record.
    """

    def __init__(self, record: TuningRecord) -> None:
        self.record = record
        self._seen: set[int] = set()
        self._told: str | None = None

    def changed(self) -> None:
        """Print what has changed in the record: what hinders the tuning job, and which trials have ended."""
        held_up = held_up_by(self.record)
        if held_up is not None and held_up != self._told:
            say(held_up)
        self._told = held_up
        self.show()

    def show(self) -> None:
        """Print a line for each trial that has ended since the last call."""
        rows, spec = self.record.trials(), self.record.spec
        best = best_row(rows, maximize=spec.maximize)  # the status may be older than the rows
        for place, row in enumerate(rows, 1):
            if row["state"] != "Running" and row["number"] not in self._seen:
                self._seen.add(row["number"])
                write_text(sys.stdout, trial_line(row, place, spec, best=row is best) + "\n")


class LiveTable(TrialLines):
    """A live view of the trials. A terminal shows a table that is updated in place. Other outputs show lines.

    Args:
        record: The tuning job's record.
        quiet: Whether to show nothing.
    """

    def __init__(self, record: TuningRecord, *, quiet: bool) -> None:
        super().__init__(record)
        self._quiet = quiet
        self._live: Any = None

    def __enter__(self) -> LiveTable:
        if not self._quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """Update the table on a terminal. On other outputs, print the trials that have ended. With ``quiet``, show
        nothing.
        """
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif not self._quiet:
            super().show()

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        rows = sorted_rows(self.record)
        head, texts = cells(self.record, rows[:_LIVE_ROWS])
        head, *texts = fitting([head, *texts], self._live.console.width, len(self.record.spec.ranges))
        more = f", and {len(rows) - _LIVE_ROWS} more" if len(rows) > _LIVE_ROWS else ""
        table = Table(title=Text(visible(f"{self.record.name}: {summary(self.record)}{more}")), title_justify="left")
        for place, title in enumerate(head):
            left = place < 2 or title in (_DROPPED[0], _TOGETHER)
            table.add_column(Text(visible(title)), justify="left" if left else "right", no_wrap=title != _TOGETHER)
        for row, line in zip(rows, texts, strict=False):
            style = {"Completed": "green", "Running": "cyan", "Failed": "red"}.get(row["state"], "dim")
            shown = [Text(visible(text)) for text in line]
            shown[1].stylize(style)
            table.add_row(*shown)
        return table


def fitting(lines: list[list[str]], width: int, parameters: int) -> list[list[str]]:
    """Return the lines of a table of trials so that they fit in the width of the terminal.

    The least important columns are omitted. If this does not suffice, the hyperparameters share a column.

    Args:
        lines: The titles of the columns, then the texts of each row.
        width: The width of the terminal, in columns.
        parameters: The number of columns of hyperparameters, which begin after the third column.
    """

    def fits() -> bool:
        return sum(max(map(columns_of, column)) + 3 for column in zip(*lines, strict=True)) + 1 <= width

    for title in _DROPPED:
        if fits():
            return lines
        place = len(lines[0]) - 1 - lines[0][::-1].index(title)  # a hyperparameter may have the same name
        lines = [[*line[:place], *line[place + 1 :]] for line in lines]
    if fits() or parameters < 2:
        return lines
    end = 3 + parameters
    names = lines[0][3:end]
    together = [_TOGETHER, *(", ".join(map("{}={}".format, names, line[3:end])) for line in lines[1:])]
    return [[*line[:3], text, *line[end:]] for line, text in zip(lines, together, strict=True)]


class NotebookDisplay(TrialLines):
    """A table of the trials in a notebook, which is updated when the trials change."""

    _handle: Any = None

    def show(self) -> None:
        """Display the table, or update the displayed table."""
        from IPython.display import HTML, display

        shown = HTML(study_html(self.record))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _can_draw() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def _value(text: str) -> str:
    """Format a hyperparameter. Numbers are written with four significant digits, and texts without JSON's quotes."""
    try:
        number = float(text)
    except ValueError:
        return text.strip('"')
    return f"{number:.4g}" if math.isfinite(number) and number != int(number) else text
