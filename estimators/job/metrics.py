"""Metrics: numbers that regular expressions find in the logs, or that a script reports.

SageMaker's ``metric_definitions`` (``[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]``) are checked and compiled once,
before a job starts. While it runs, the supervisor feeds every piece of output to a :class:`MetricExtractor`, has the
lines searched (:mod:`estimators.supervisor.matching`) and gets events; :func:`metrics_frame` makes a DataFrame of them.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import diverging, wire
from container.contract.names import cut, shown, unknown
from container.contract.rules import items_of
from container.contract.wire import Event, Piece
from estimators.job.errors import ConfigurationError
from estimators.job.numbers import GROUP, Caught, cut_number, number_of

if TYPE_CHECKING:
    import pandas
    from regex._main import Pattern

#: The columns of :func:`metrics_frame`.
COLUMNS = ("time", "elapsed_s", "attempt", "rank", "name", "value", "host")

#: Whose metrics there are.
METRIC_KINDS = ("script", "system")

#: The longest regex, in characters: SageMaker's limit.
_MAX_REGEX = 500

#: Lines are searched up to this many bytes; what is beyond is in the log, but is not looked at.
LINE_LIMIT = 1 << 20

#: How programs print what is not a number; and, to look no further where there is none, the letters of it.
_NOT_A_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE)
_WORDS = ("nan", "NaN", "NAN", "inf", "Inf", "INF")
#: Numbers that hardly any training prints, and how much of one a regex must have caught to be sure.
_STAND_INS = {"nan": "0.73905142681", "inf": "0.40286193757", "-inf": "0.61820347193"}
_LEAST = len("0.7390")
#: Keras's ``Epoch 3/10`` and ``45/120 [===>…``, and what other scripts print.
_EPOCH = re.compile(r"Epoch (\d{1,15})\b")
_STEPS = re.compile(r"(?:\x1b\[[0-9;]*m)*\s*(\d{1,15})/\d+\b")
_PLACES = re.compile(r"\b(step|iteration|iter|batch|epoch)\b\W{0,3}(\d{1,15})", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class MetricDefinition:
    """A metric and how to find its value in a line.

    Attributes:
        name: What the metric is called.
        regex: A regular expression whose first group matches the number.
    """

    name: str
    regex: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"metric_definitions: 'Name' must be a string, got {shown(self.name)}.")
        if not isinstance(self.regex, str) or not self.regex:
            raise ConfigurationError(
                f"metric_definitions: 'Regex' of {self.name!r} must be a string, got {shown(self.regex)}."
            )
        if len(self.regex) > _MAX_REGEX:
            raise ConfigurationError(
                f"metric {self.name!r}: the regex has {len(self.regex):,} characters; at most {_MAX_REGEX} are allowed."
            )
        if self.compile().groups == 0:
            raise ConfigurationError(
                f"metric {self.name!r}: the regex {shown(self.regex)} has no group. Put parentheses around the "
                "number, for example 'loss: ([0-9.eE+-]+)'."
            )

    def compile(self) -> Pattern[str]:
        """Compile the regex with the package ``regex``, which can end a search that takes too long; ``re`` cannot.

        Raises:
            ConfigurationError: it is not a regex of Python's ``re``; the message shows where it goes wrong.
        """
        import regex

        try:
            re.compile(self.regex)  # its errors name the position better
            return regex.compile(self.regex)
        except (RecursionError, OverflowError):
            raise ConfigurationError(
                f"metric {self.name!r}: the regex is nested too deeply, or repeats too often: {shown(self.regex)}."
            ) from None
        except (re.error, regex.error) as raised:
            error: Any = raised  # the stubs lack its attributes
            position = error.pos or 0
            raise ConfigurationError(
                f"metric {self.name!r}: the regex is not valid: {error.msg} at position {position}.\n"
                f"  {self.regex!s}\n  {' ' * position}^"
            ) from None

    @property
    def word(self) -> str:
        """What lines that were meant have in them: the longest word of the regex, or else of the name."""
        plain = re.sub(r"\\.|\[[^\]]*\]|\(\?[^)]*\)?", " ", self.regex)
        words: list[str] = re.findall(r"[^\W\d]{2,}", plain) or re.findall(r"[^\W\d]{2,}", self.name) or [self.name]
        return max(words, key=len)

    def to_dict(self) -> dict[str, str]:
        """SageMaker's form."""
        return {"Name": self.name, "Regex": self.regex}


def parse_metric_definitions(value: Any) -> tuple[MetricDefinition, ...]:
    """Check the ``metric_definitions`` argument.

    Args:
        value: None, or a list of ``{"Name": …, "Regex": …}`` or :class:`MetricDefinition`.

    Raises:
        ConfigurationError: an unknown key, a regex that is not one or that has no group.
    """
    if value is None:
        return ()
    example = "[{'Name': 'loss', 'Regex': 'loss: ([0-9.]+)'}]"
    return tuple(_parse_one(item) for item in items_of("metric_definitions", value, example))


def _parse_one(item: Any) -> MetricDefinition:
    if isinstance(item, MetricDefinition):
        return item
    if not isinstance(item, Mapping):
        raise ConfigurationError(
            f"metric_definitions: each definition must be {{'Name': …, 'Regex': …}}; got {shown(item)}."
        )
    for key in item:
        if key not in ("Name", "Regex"):
            raise ConfigurationError(unknown("key of a metric definition", key, ("Name", "Regex")))
    for key in ("Name", "Regex"):
        if key not in item:
            raise ConfigurationError(f"metric_definitions: {key!r} is missing in {dict(item)!r}.")
    return MetricDefinition(item["Name"], item["Regex"])


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a process's output, to be searched.

    Attributes:
        text: The line, without its end; of a very long one the first :data:`LINE_LIMIT` bytes.
        host: The host that printed it.
        rank: The rank, if it is of one.
        time_ns: When it arrived, in nanoseconds since the epoch.
        attempt: Which start of the job.
        epoch: The epoch that Keras has last said to have begun.
        place: Where in the training it was printed, of a line in which numbers stand for what is not one
            (:func:`with_numbers`); None of one as it was printed.
    """

    text: str
    host: str
    rank: int | None
    time_ns: int
    attempt: int
    epoch: int | None = None
    place: Mapping[str, int] | None = None

    def event(self, kind: str, data: Mapping[str, Any]) -> Event:
        """Make an event of the process that printed the line."""
        return Event(
            kind=kind, host=self.host, time_ns=self.time_ns, rank=self.rank, attempt=self.attempt, data=dict(data)
        )


class MetricExtractor:
    """Makes lines of the output of processes, and events of what was found in them.

    Pieces are joined until their line ends; each metric is taken once per line, where it matches first.

    Args:
        definitions: The metrics.
        rank_of: The rank of a host's process, see :mod:`estimators.records.ranks`; None to take it from the process's
        name.
    """

    def __init__(
        self,
        definitions: Iterable[MetricDefinition],
        rank_of: Callable[[str, str | None], int | None] | None = None,
    ) -> None:
        self.rank_of = rank_of or (lambda host, process: wire.rank_of(process))
        self.definitions = tuple(definitions)
        self._rest: dict[tuple[str, str | None], bytearray] = {}
        self._complained: set[str] = set()
        self._epochs: dict[tuple[str, str | None], int] = {}  # as Keras prints them
        self._nearest: dict[str, str] = {}  # of metrics that were not found so far, a line that has their word
        self._words = {definition.name: definition.word for definition in self.definitions}

    def feed(self, piece: Piece, *, time_ns: int, attempt: int = 0) -> Line | None:
        """Take a piece of output.

        Args:
            piece: What one process printed.
            time_ns: When it arrived, in nanoseconds since the epoch.
            attempt: Which start of the job.

        Returns:
            The line that ends with the piece, if one does and there is something to look for.
        """
        if not self.definitions:
            return None
        key = (piece.host, piece.process)
        data: bytes | bytearray = piece.data
        ended = data.endswith((b"\n", b"\r"))
        if key in self._rest or not ended:
            rest = self._rest.setdefault(key, bytearray())
            rest += data[: max(0, LINE_LIMIT - len(rest))]
            if not ended:
                return None
            data = self._rest.pop(key)
        return self._line(data, piece.host, piece.process, time_ns, attempt)

    def finish(self, *, time_ns: int, attempt: int = 0) -> list[Line]:
        """The processes have ended: their last lines without an end."""
        lines = [self._line(rest, *key, time_ns, attempt) for key, rest in self._rest.items()]
        self._rest.clear()
        return lines

    def _line(self, data: bytes | bytearray, host: str, process: str | None, time_ns: int, attempt: int) -> Line:
        text = data[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("Epoch ") and (epoch := _EPOCH.match(text)) is not None:
            self._epochs[host, process] = int(epoch[1])
        for name, word in self._words.items():
            if name not in self._nearest and word in text:
                self._nearest[name] = text
        return Line(text, host, self.rank_of(host, process), time_ns, attempt, epoch=self._epochs.get((host, process)))

    def events(self, line: Line, definition: MetricDefinition, caught: Caught) -> list[Event]:
        """Return what was found in a line.

        Args:
            line: The line.
            definition: The metric.
            caught: What its regex caught there.

        Returns:
            An event of kind ``metric`` with data ``{"name", "value"}``, and one of kind ``warning`` for the first time
            that the regex of a metric caught something that is not a number, or only a number's end. Of a line with
            numbers in place of ``nan`` one of kind ``not_a_number``, with what was in the number's place, and where in
            the training that was.
        """
        if line.place is not None:
            value = _stood_for(caught.text)
            if value is None:
                return []
            told = {"name": definition.name, "value": value, **line.place}
            return [line.event("not_a_number", told)]
        self._words.pop(definition.name, None)
        events = []
        value = number_of(caught)
        whole = cut_number(caught, definition.regex)
        if value is not None:
            data: dict[str, Any] = {"name": definition.name, "value": value}
            if diverging.has_diverged(definition.name, value):
                data.update(_place(line.text, line.epoch))
            events.append(line.event("metric", data))
        if (value is None or whole is not None) and definition.name not in self._complained:
            self._complained.add(definition.name)
            text = f"metric {definition.name!r}: the regex {definition.regex!r} captured {cut(caught.text, 80)!r}"
            part = f", only a part of {whole!r}: use the group {GROUP}."
            text += ", which is not a number." if whole is None else part
            events.append(line.event("warning", {"message": text}))
        return events

    def unmatched(self, known: Collection[str]) -> list[str]:
        """Say what was not found in any line.

        Args:
            known: The metrics that were found, or reported.
        """
        told = []
        for definition in self.definitions:
            if definition.name not in known and definition.name not in self._complained:
                near = self._nearest.get(definition.name)
                like = f"; the first line with {definition.word!r} is {cut(near.strip(), 160)!r}" if near else ""
                text = f"metric {definition.name!r}: the regex {definition.regex!r} matched no line of the output"
                told.append(f"{text}{like}.")
        return told


def with_numbers(line: Line) -> Line | None:
    """The line with numbers in place of ``nan`` and ``inf``, where it has some: a stand-in, to be searched as well.

    ``loss: ([0-9.]+)`` does not match ``loss: nan``. With a number in its place it does, and catches that.
    """
    if not any(word in line.text for word in _WORDS):
        return None
    text, count = _NOT_A_NUMBER.subn(lambda found: _STAND_INS[str(float(found[0]))], line.text)
    if not count:
        return None
    return dataclasses.replace(line, text=text, place=_place(line.text, line.epoch))


def _stood_for(caught: str) -> float | None:
    """Return what a number that was caught in a stand-in is in place of; None if it is the line's own."""
    for name, number in _STAND_INS.items():
        if len(caught) >= _LEAST and number.startswith(caught):
            return float(name)
    return None


def _place(text: str, epoch: int | None) -> dict[str, int]:
    """Where in the training a line was printed, as far as it says so, or Keras did before."""
    found: dict[str, int] = {"epoch": epoch} if epoch is not None else {}
    if (steps := _STEPS.match(text)) is not None:
        found["step"] = int(steps[1])
    for word, number in _PLACES.findall(text):
        found["epoch" if word.lower() == "epoch" else "step"] = int(number)
    return found


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

    @property
    def names(self) -> Collection[str]:
        """The metrics that have come."""
        return self._last.keys()

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


def system_metrics(events: Iterable[Event]) -> Iterator[Event]:
    """Yield what hosts report of their resources as metrics: each number is one.

    Args:
        events: The job's events; those that are something else are left out.
    """
    for event in events:
        for name, value in event.data.items() if event.kind == "resources" else ():
            if isinstance(value, int | float):
                yield dataclasses.replace(event, kind="metric", data={"name": name, "value": value})


def metrics_frame(events: Iterable[Event], *, start: float | None = None) -> pandas.DataFrame:
    """Return a DataFrame of a job's metrics, a row per value, in the order in which they came.

    Args:
        events: The job's events; those that are not metrics are left out.
        start: What ``elapsed_s`` counts from, in seconds since the epoch; default: the first value.

    Returns:
        Columns ``time`` (UTC), ``elapsed_s`` (seconds), ``attempt``, ``rank`` (missing for processes that are none),
        ``name``, ``value``, ``host``.
    """
    import pandas

    times, attempts, found_ranks, names, values, hosts = [], [], [], [], [], []
    for event in events:  # there may be millions of them: columns take a tenth of what the events would
        if event.kind == "metric" and {"name", "value"} <= event.data.keys():
            times.append(event.time_ns)
            attempts.append(event.attempt)
            found_ranks.append(event.rank)
            names.append(sys.intern(str(event.data["name"])))
            values.append(float(event.data["value"]))
            hosts.append(sys.intern(event.host))
    origin = int(start * 1e9) if start is not None else min(times, default=0)
    return pandas.DataFrame(
        {
            "time": pandas.to_datetime(pandas.Series(times, dtype="int64"), unit="ns", utc=True),
            "elapsed_s": pandas.Series([(time_ns - origin) / 1e9 for time_ns in times], dtype="float64"),
            "attempt": pandas.Series(attempts, dtype="int64"),
            "rank": pandas.Series(found_ranks, dtype="Int64"),
            "name": pandas.Series(names, dtype="str"),
            "value": pandas.Series(values, dtype="float64"),
            "host": pandas.Series(hosts, dtype="str"),
        }
    )
