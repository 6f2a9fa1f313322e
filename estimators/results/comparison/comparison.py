"""Represent a comparison of jobs' results as a value: the results in groups, the groups' differences, and a table.
Pure.

A run is a job, and a group has the runs of one configuration. The table shows the median of a group's completed runs,
with the lowest and the highest value. Failed runs are listed with the cause of their failure.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments, unknown
from estimators.records.private_files import explained
from estimators.results import tables
from estimators.results.result import Result
from estimators.results.summary import quantity_text

if TYPE_CHECKING:
    import pandas

    from estimators.results.plots import Plot

#: The marks of a group in the table, and the marks' meanings.
OTHER_DATA = "†"
OTHER_BATCH = "‡"
MARKS = {
    OTHER_DATA: "the data differs from that of the first job: losses and accuracies are not comparable",
    OTHER_BATCH: "the global batch size differs from that of the first job: step times and curves against samples are "
    "not comparable",
}


@dataclass(frozen=True)
class Spread:
    """The median and the range of a number over several runs.

    Attributes:
        median: The median.
        low: The lowest value.
        high: The highest value.
        count: The number of values.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Compute the spread of the known values. Return None if no value is known."""
        known = [float(value) for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known), len(known)) if known else None

    def text(self, unit: str = "") -> str:
        """Return a text such as ``12 (11 – 13)``. Return only the median if there is one value, or if all values are
        equal.

        Args:
            unit: The unit of the numbers, one of the units of :func:`~estimators.results.summary.quantity_text`.
        """
        median, low, high = (quantity_text(value, unit) for value in (self.median, self.low, self.high))
        return median if self.count == 1 or low == high else f"{median} ({low} – {high})"


@dataclass(frozen=True)
class Group:
    """The runs of one configuration.

    Attributes:
        name: The group's name in the table.
        results: The results of the group's runs in chronological order, including failed runs.
    """

    name: str
    results: tuple[Result, ...]

    @property
    def completed(self) -> tuple[Result, ...]:
        """Return the runs that completed."""
        return tuple(result for result in self.results if result.status == "Completed")

    @property
    def failed(self) -> tuple[Result, ...]:
        """Return the runs that failed or were stopped."""
        return tuple(result for result in self.results if result.status in ("Failed", "Stopped"))

    @property
    def incomplete(self) -> tuple[Result, ...]:
        """Return the runs that failed, were stopped or have not ended yet."""
        return tuple(result for result in self.results if result.status != "Completed")

    @property
    def first(self) -> Result:
        """Return a run that represents the group: the first completed run, or the first run if no run has completed."""
        return (self.completed or self.results)[0]

    @property
    def strategy(self) -> str | None:
        """Return the name of the group's strategy. Return None if the group has no strategy."""
        return self.first.strategy

    @functools.cached_property
    def summaries(self) -> tuple[dict[str, Any], ...]:
        """Return the summaries of the completed runs."""
        return tuple(result.summary() for result in self.completed)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a number over the completed runs. Return None if no run has the number.

        Args:
            name: The name of the number in a run's summary.
        """
        return Spread.of(row.get(name) for row in self.summaries)


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: The heading of the column.
        name: The name of the number in a run's summary.
        unit: The number's unit, one of the units of :func:`~estimators.results.summary.quantity_text`.
    """

    title: str
    name: str
    unit: str = ""


#: The columns of the table. The columns of the metrics are inserted after the first of these columns.
_COLUMNS = (
    Column("samples/s", "samples_per_second"),
    Column("total", "seconds", "s"),
    Column("steps/s", "steps_per_second"),
    Column("step, median", "step_median_s", "s"),
    Column("step, p95", "step_p95_s", "s"),
    Column("to first step", "to_first_step_s", "s"),
    Column("parameters", "parameters", "count"),
    Column("sent per step", "link_bytes", "bytes"),
    Column("peak memory", "peak_memory_bytes", "bytes"),
    Column("cost", "cost", "$"),
)

#: The names of the plots in a report, in the order of the page, and their headings.
_PLOTS = {
    "throughput": "Throughput",
    "curves": "Losses and accuracies",
    "scaling": "Scaling",
    "steps": "Step times",
    "phases": "Where the time went",
}


def _parameters(result: Result) -> float | None:
    return result.model.parameters if result.model is not None else None


@suggests_arguments
class Comparison:
    """A comparison of runs.

    ``print()`` shows the comparison as text. A notebook shows the comparison as HTML. :meth:`report` writes one HTML
    file, and :meth:`plot` draws plots.

    Args:
        groups: The runs, grouped by configuration.
        prices: The prices in US dollars per host and hour, by instance type. The given prices replace the published
            prices.

    Attributes:
        groups: The runs, grouped by configuration.
        warnings: Sentences that say which rows cannot be compared, and why.
    """

    def __init__(self, groups: Sequence[Group], *, prices: Mapping[str, float] | None = None) -> None:
        self.groups = tuple(groups)
        self.prices = dict(prices or {})
        self._marks = _marks(self.groups)
        self.warnings = tuple(_warnings(self.groups, self._marks))

    def __repr__(self) -> str:
        runs = sum(len(group.results) for group in self.groups)
        return f"<Comparison of {len(self.groups)} configurations, {runs} runs>"

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(unknown("row", name, [group.name for group in self.groups]))

    @property
    def results(self) -> tuple[Result, ...]:
        """Return all runs."""
        return tuple(result for group in self.groups for result in group.results)

    def marks(self, group: Group) -> str:
        """Return the marks of a row. See :data:`MARKS`."""
        return self._marks[group.name]

    def cost(self, result: Result) -> float | None:
        """Return the cost of a run in US dollars. Return None if the cost is unknown."""
        found = result.cost(per_hour=self.prices.get(result.instance_type or ""))
        return found.total if found is not None else None

    def baseline(self, group: Group) -> Group | None:
        """Return the single-process group with which a group's scaling is compared. Return None if there is no such
        group.

        The returned group has a completed run, the same instance type and the same model. If there are several such
        groups, a group with the same strategy is preferred.
        """
        mine = group.first
        singles = [
            other
            for other in self.groups
            if other.completed
            and other.first.processes == 1
            and other.first.instance_type == mine.instance_type
            and _parameters(other.first) == _parameters(mine)
        ]
        same = [other for other in singles if other.first.strategy == mine.strategy]
        found = same or singles
        return found[0] if found else None

    def efficiency(self, group: Group) -> Spread | None:
        """Return a group's scaling efficiency: the speed per process, divided by the median speed of one process.

        Return None if there is no completed run of one process. Return None also if the group has several hosts without
        a strategy, because each host then trains separately.
        """
        if group.first.strategy is None and group.first.hosts > 1:
            return None
        baseline = self.baseline(group)
        alone = baseline.spread("samples_per_second") if baseline is not None else None
        mine = group.spread("samples_per_second")
        if alone is None or not alone.median or mine is None:
            return None
        unit = group.first.processes * alone.median
        return Spread(mine.median / unit, mine.low / unit, mine.high / unit, mine.count)

    def spread(self, group: Group, column: Column) -> Spread | None:
        """Return the spread of a column's number over a group's completed runs.

        Return None if no run has the number.
        """
        if column.name == "cost":
            return Spread.of(self.cost(result) for result in group.completed)
        return group.spread(column.name)

    # --- tables ---

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that have at least one value."""
        names = dict.fromkeys(name for result in self.results for name in result.final_metrics)
        metrics = [name for name in names if name not in ("epoch", "samples_per_second")][:4]
        columns = (_COLUMNS[0], *(Column(name, f"metric_{name}") for name in metrics), *_COLUMNS[1:])
        rows = [{**result.summary(), "cost": self.cost(result)} for result in self.results]
        return tuple(column for column in columns if any(row.get(column.name) is not None for row in rows))

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the heading and the rows of the table as texts. There is a row for each group."""
        scaled = [self.efficiency(group) for group in self.groups]
        head = ["", "hosts × processes", "runs", *(column.title for column in self.columns)]
        if any(scaled):
            head.append("efficiency")
        rows = []
        for group, efficiency in zip(self.groups, scaled, strict=True):
            first = group.first
            runs = str(len(group.completed))
            if group.incomplete:
                runs += f" of {len(group.results)}"
            cells = [
                f"{group.name} {self.marks(group)}".rstrip(), f"{first.hosts} × {first.processes_per_host}", runs
            ]  # fmt: skip
            for column in self.columns:
                found = self.spread(group, column)
                cells.append(found.text(column.unit) if found is not None else "–")
            if any(scaled):
                cells.append(efficiency.text("share") if efficiency is not None else "–")
            rows.append(cells)
        return head, rows

    def notes(self) -> list[str]:
        """Return the notes below the table: the meaning of its marks, the ranks that slow other ranks down, and the
        reasons why runs have not completed.
        """
        used = "".join(self._marks.values())
        lines = [f"{mark} {text}" for mark, text in MARKS.items() if mark in used]
        for group in self.groups:
            for result in group.completed:
                if (slow := result.straggler) is not None:
                    lines.append(
                        f"{group.name}: rank {slow.rank} on {slow.host} slowed the other ranks down ({result.job_name})"
                    )
            lines += [f"{group.name}: {result.job_name} {cause(result)}" for result in group.incomplete]
        return lines

    def table(self) -> pandas.DataFrame:
        """Return a data frame with a row of medians for each group. The units are seconds, bytes and US dollars."""
        import pandas

        rows = []
        for group in self.groups:
            row: dict[str, Any] = {
                "name": group.name,
                "marks": self.marks(group),
                "strategy": group.first.strategy or "none",
                "instance_type": group.first.instance_type,
                "hosts": group.first.hosts,
                "processes": group.first.processes,
                "runs": len(group.results),
                "completed": len(group.completed),
            }
            for column in self.columns:
                found = self.spread(group, column)
                name = column.title.replace(", ", "_").replace("/", "_per_").replace(" ", "_")
                row[name] = found.median if found is not None else None
                if len(group.completed) > 1:
                    row[f"{name}_low"], row[f"{name}_high"] = (found.low, found.high) if found else (None, None)
            efficiency = self.efficiency(group)
            row["efficiency"] = efficiency.median if efficiency is not None else None
            row["failure"] = "; ".join(cause(result) for result in group.incomplete) or None
            rows.append(row)
        return pandas.DataFrame(rows).set_index("name") if rows else pandas.DataFrame()

    def metrics(self) -> pandas.DataFrame:
        """Return a data frame with the metric values of all runs, as far as the results contain them.

        The columns are those of :meth:`Result.metrics`, followed by ``group`` and ``job``.
        """
        import pandas

        frames = [
            result.metrics().assign(group=group.name, job=result.job_name)
            for group in self.groups
            for result in group.results
            if result.series
        ]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON-serialisable dict."""
        return {
            "groups": [
                {"name": group.name, "results": [result.to_dict() for result in group.results]}
                for group in self.groups
            ],
            "prices": self.prices,
        }  # fmt: skip

    def __str__(self) -> str:
        return self.as_text(tables.terminal_width())

    def as_text(self, width: int | None) -> str:
        """Return the table and its notes as text.

        Args:
            width: The largest width, in columns of a terminal. None for no limit.
        """
        if not self.groups:
            return "nothing to compare"
        lines = [tables.numbers(*self.rows(), width)]
        if self.notes():
            lines += ["", *tables.paragraphs(self.notes(), width)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from estimators.results.html import render

        head, rows = self.rows() if self.groups else ([], [])
        return render(
            "results/templates/comparison",
            head=head,
            rows=rows,
            faint=[index for index, group in enumerate(self.groups) if not group.completed],
            notes=self.notes() if self.groups else (),
            warnings=self.warnings,
        )

    # --- plots and report ---

    def plot(self, kind: str = "throughput", **options: Any) -> Plot:
        """Draw a plot.

        Args:
            kind: The name of the plot: ``curves``, ``throughput``, ``phases``, ``scaling`` or ``steps``.
            options: The options of ``curves``: ``metrics`` and ``against``. ``metrics`` has the names of metrics, by
                default losses and accuracies. ``against`` is ``"time"`` or ``"samples"``, by default both.

        Raises:
            ValueError: the plot is unknown. The message suggests the most similar name.
            UnsupportedError: matplotlib is not installed.
        """
        from estimators.results.plots import KINDS

        if kind not in KINDS:
            raise ValueError(unknown("plot", kind, KINDS))
        drawn: Plot = importlib.import_module(f"estimators.results.plots.{kind}").draw(self, **options)
        return drawn

    def report(self, path: str | Path) -> Path:
        """Write one HTML file with the table and all plots. The file needs no network.

        Args:
            path: The path of the file.

        Returns:
            The path of the file.
        """
        from estimators.results.html import render

        one = len(self.results) == 1
        several = len({group.first.processes for group in self.groups}) > 1
        plots = [(title, self.plot(kind)) for kind, title in _PLOTS.items() if kind != "scaling" or several]
        page = render(
            "results/templates/report",
            title=self.results[0].job_name if one else f"{len(self.groups)} configurations compared",
            when=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            table=self._repr_html_(),
            plots=sorted(plots, key=lambda pair: pair[1].empty),  # empty plots come last
            jobs=[(group.name, result) for group in self.groups for result in group.results],
        )
        file = Path(path)
        with explained(file, "write"):
            file.write_text(page, encoding="utf-8")
        return file


def cause(result: Result) -> str:
    """Return one line that explains why a run did not complete."""
    if result.status == "Stopped":
        detail = f" ({result.secondary_status})" if result.secondary_status != "Stopped" else ""
        return f"was stopped{detail}"
    if result.status != "Failed":
        return "has not ended yet"
    lines = [line.strip() for line in (result.failure_reason or "").splitlines() if line.strip()]
    if not lines:
        return "failed: the record does not say why"
    # Add the last line, which comes from the script, because the first line may only report the end of a process.
    last = f" ({lines[-1][:150]})" if len(lines) > 1 and lines[-1] not in lines[0] else ""
    return f"failed: {lines[0][:300]}{last}"


# --- differences ---


def same_data(one: Result, other: Result) -> bool:
    """Return whether two runs had the same data.

    The digests of the data are compared. If a digest is unknown, the locations of the data are compared.
    """
    if set(one.data) != set(other.data):
        return False
    for name, mine in one.data.items():
        theirs = other.data[name]
        kind = "digest" if mine.get("digest") and theirs.get("digest") else "uri"
        if mine.get(kind) != theirs.get(kind):
            return False
    return True


def _marks(groups: Sequence[Group]) -> dict[str, str]:
    if not groups:
        return {}
    first = groups[0].first
    found = {}
    for group in groups:
        marks = ""
        if not all(same_data(first, result) for result in group.results):
            marks += OTHER_DATA
        sizes = {result.global_batch_size for result in group.results} - {None}
        if first.global_batch_size is not None and sizes - {first.global_batch_size}:
            marks += OTHER_BATCH
        found[group.name] = marks
    return found


def _warnings(groups: Sequence[Group], marks: Mapping[str, str]) -> Iterable[str]:
    for mark, words in ((OTHER_DATA, "data"), (OTHER_BATCH, "global batch sizes")):
        others = [group for group in groups if mark in marks[group.name]]
        if others:
            detail = ""
            if mark == OTHER_BATCH:
                sizes = [f"{group.name}: {group.first.global_batch_size}" for group in (groups[0], *others)]
                detail = f" ({', '.join(sizes)})"
            yield (
                f"runs with different {words} are compared{detail}: {', '.join(group.name for group in others)} "
                f"differ{'s' if len(others) == 1 else ''} from {groups[0].name}. In the table, "
                f"{mark} marks {'this job' if len(others) == 1 else 'these jobs'}."
            )
