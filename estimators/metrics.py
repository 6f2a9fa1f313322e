"""Metrics: numbers that regular expressions find in the logs, or that a script reports.

SageMaker's ``metric_definitions`` (``[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]``) are checked and compiled once,
before a job starts. While it runs, the supervisor feeds every piece of output to a :class:`MetricExtractor` and gets
events; :func:`metrics_frame` makes a DataFrame of them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import wire
from container.contract.names import unknown
from container.contract.wire import Event, Piece
from estimators.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas

#: The columns of :func:`metrics_frame`.
COLUMNS = ("time", "elapsed_s", "attempt", "rank", "name", "value", "host")

#: Lines are searched up to this many bytes; what is beyond is in the log, but is not looked at.
LINE_LIMIT = 1 << 20


@dataclasses.dataclass(frozen=True)
class MetricDefinition:
    """A metric and how to find its value in a line.

    Attributes:
        name: What the metric is called.
        regex: A regular expression with exactly one group, which matches the number.
    """

    name: str
    regex: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"metric_definitions: 'Name' must be a text, got {self.name!r}.")
        if not isinstance(self.regex, str) or not self.regex:
            raise ConfigurationError(
                f"metric_definitions: 'Regex' of {self.name!r} must be a text, got {self.regex!r}."
            )
        groups = self.compile().groups
        if groups == 0:
            raise ConfigurationError(
                f"metric {self.name!r}: the regex {self.regex!r} has no group; put parentheses around the number, "
                f"for example 'loss: ([0-9.eE+-]+)'."
            )
        if groups > 1:
            raise ConfigurationError(
                f"metric {self.name!r}: the regex {self.regex!r} has {groups} groups and it is not clear which one is "
                "the number; write (?:…) for the others."
            )

    def compile(self) -> re.Pattern[str]:
        """The compiled regex.

        Raises:
            ConfigurationError: it is not a regex; the message shows where it goes wrong.
        """
        try:
            return re.compile(self.regex)
        except re.error as error:
            position = error.pos or 0
            raise ConfigurationError(
                f"metric {self.name!r}: the regex is not valid: {error.msg} at position {position}.\n"
                f"  {self.regex!s}\n  {' ' * position}^"
            ) from None

    def to_dict(self) -> dict[str, str]:
        """SageMaker's form."""
        return {"Name": self.name, "Regex": self.regex}


def parse_metric_definitions(value: Any) -> tuple[MetricDefinition, ...]:
    """Check the ``metric_definitions`` argument.

    Args:
        value: None, or a list of ``{"Name": …, "Regex": …}`` or :class:`MetricDefinition`.

    Raises:
        ConfigurationError: an unknown key, a regex that is not one or that has not exactly one group.
    """
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(
            "metric_definitions must be a list such as [{'Name': 'loss', 'Regex': 'loss: ([0-9.]+)'}]; "
            f"got {value!r}."
        )
    return tuple(_parse_one(item) for item in value)


def _parse_one(item: Any) -> MetricDefinition:
    if isinstance(item, MetricDefinition):
        return item
    if not isinstance(item, Mapping):
        raise ConfigurationError(f"metric_definitions: each must be {{'Name': …, 'Regex': …}}; got {item!r}.")
    for key in item:
        if key not in ("Name", "Regex"):
            raise ConfigurationError(unknown("key of a metric definition", key, ("Name", "Regex")))
    for key in ("Name", "Regex"):
        if key not in item:
            raise ConfigurationError(f"metric_definitions: {key!r} is missing in {dict(item)!r}.")
    return MetricDefinition(item["Name"], item["Regex"])


class MetricExtractor:
    """Finds metrics in the output of processes, line by line.

    Pieces are joined until their line ends; each metric is taken once per line, where it matches first.

    Args:
        definitions: The metrics.
        rank_of: The rank of a host's process, see :mod:`estimators.ranks`; None to take it from the process's name.
    """

    def __init__(
        self,
        definitions: Iterable[MetricDefinition],
        rank_of: Callable[[str, str | None], int | None] | None = None,
    ) -> None:
        self.rank_of = rank_of or (lambda host, process: wire.rank_of(process))
        self._searches = [(definition, definition.compile().search) for definition in definitions]
        self._rest: dict[tuple[str, str | None], bytearray] = {}
        self._complained: set[str] = set()

    def feed(self, piece: Piece, *, time_ns: int, attempt: int = 0) -> list[Event]:
        """Take a piece of output.

        Args:
            piece: What one process printed.
            time_ns: When it arrived, in nanoseconds since the epoch.
            attempt: Which start of the job.

        Returns:
            Events of kind ``metric`` with data ``{"name", "value"}``, and one of kind ``warning`` for each metric
            whose regex caught something that is not a number.
        """
        if not self._searches:
            return []
        key = (piece.host, piece.process)
        data: bytes | bytearray = piece.data
        ended = data.endswith((b"\n", b"\r"))
        if key in self._rest or not ended:
            rest = self._rest.setdefault(key, bytearray())
            rest += data[: max(0, LINE_LIMIT - len(rest))]
            if not ended:
                return []
            data = self._rest.pop(key)
        return self._search(data, piece, time_ns, attempt)

    def finish(self, *, time_ns: int, attempt: int = 0) -> list[Event]:
        """The processes have ended: look at last lines without an end."""
        events: list[Event] = []
        for (host, process), rest in self._rest.items():
            events += self._search(rest, Piece(host, process, b""), time_ns, attempt)
        self._rest.clear()
        return events

    def _search(self, data: bytes | bytearray, piece: Piece, time_ns: int, attempt: int) -> list[Event]:
        text = data[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r\n")
        events: list[Event] = []
        rank = self.rank_of(piece.host, piece.process)
        for definition, search in self._searches:
            match = search(text)
            found = match.group(1) if match is not None else None
            if found is None:
                continue
            try:
                event_data: dict[str, Any] = {"name": definition.name, "value": float(found)}
                kind = "metric"
            except ValueError:
                if definition.name in self._complained:
                    continue
                self._complained.add(definition.name)
                kind = "warning"
                event_data = {
                    "message": f"metric {definition.name!r}: the regex {definition.regex!r} caught {found[:80]!r}, "
                    "which is not a number."
                }
            events.append(
                Event(kind=kind, host=piece.host, time_ns=time_ns, rank=rank, attempt=attempt, data=event_data)
            )
        return events


class FinalMetrics:
    """The last value of each metric, kept up to date event by event.

    Of the last attempt that reported a metric, the lowest rank counts: the chief's word, where it has one.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[int, float], float, int]] = {}

    def add(self, event: Event) -> None:
        """Take an event; those that are not metrics are left out."""
        if event.kind != "metric":
            return
        name, value = event.data.get("name"), event.data.get("value")
        if not isinstance(name, str) or not isinstance(value, int | float):
            return
        order = (event.attempt, -float(event.rank if event.rank is not None else 1 << 30))
        if name not in self._last or order >= self._last[name][0]:
            self._last[name] = (order, float(value), event.time_ns)

    def to_list(self) -> list[dict[str, Any]]:
        """DescribeTrainingJob's ``FinalMetricDataList``, in the order in which the metrics first came."""
        return [
            {"MetricName": name, "Value": value, "Timestamp": time_ns / 1e9}
            for name, (_, value, time_ns) in self._last.items()
        ]


def final_metrics(events: Iterable[Event]) -> list[dict[str, Any]]:
    """``FinalMetricDataList`` of all events of a job."""
    final = FinalMetrics()
    for event in events:
        final.add(event)
    return final.to_list()


def metrics_frame(events: Iterable[Event], *, start: float | None = None) -> pandas.DataFrame:
    """A DataFrame of a job's metrics, a row per value, in the order in which they came.

    Args:
        events: The job's events; those that are not metrics are left out.
        start: What ``elapsed_s`` counts from, in seconds since the epoch; default: the first value.

    Returns:
        Columns ``time`` (UTC), ``elapsed_s`` (seconds), ``attempt``, ``rank`` (missing for processes that are none),
        ``name``, ``value``, ``host``.
    """
    import pandas

    kept = [event for event in events if event.kind == "metric" and {"name", "value"} <= event.data.keys()]
    times = [event.time_ns for event in kept]
    origin = int(start * 1e9) if start is not None else min(times, default=0)
    return pandas.DataFrame(
        {
            "time": pandas.to_datetime(pandas.Series(times, dtype="int64"), unit="ns", utc=True),
            "elapsed_s": pandas.Series([(time_ns - origin) / 1e9 for time_ns in times], dtype="float64"),
            "attempt": pandas.Series([event.attempt for event in kept], dtype="int64"),
            "rank": pandas.Series([event.rank for event in kept], dtype="Int64"),
            "name": pandas.Series([str(event.data["name"]) for event in kept], dtype="str"),
            "value": pandas.Series([float(event.data["value"]) for event in kept], dtype="float64"),
            "host": pandas.Series([event.host for event in kept], dtype="str"),
        }
    )
