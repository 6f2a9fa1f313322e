"""Extract metrics: numbers that regular expressions find in the logs, or that a script reports.

SageMaker's ``metric_definitions`` (``[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]``) are checked and compiled once,
before a job starts. While the job runs, the supervisor passes every piece of output to a :class:`MetricExtractor`. The
supervisor searches the resulting lines (:mod:`estimators.supervisor.matching`) and gets events for the values.
:func:`metrics_frame` converts events to a DataFrame.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import diverging, wire
from container.contract.frozen import dataclass
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

#: The kinds of metrics: reported by the script, or measured by fleetfit.
METRIC_KINDS = ("script", "system")

#: The longest regex, in characters: SageMaker's limit.
_MAX_REGEX = 500

#: The number of bytes of a line that are searched. The log contains the whole line.
LINE_LIMIT = 1 << 20

#: Matches the words with which programs print NaN and infinity. The second constant contains the beginnings of these
#: words, for a fast first check.
_NOT_A_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE)
_WORDS = ("nan", "NaN", "NAN", "inf", "Inf", "INF")
#: The stand-ins: numbers that replace NaN and infinity in a copy of a line (:func:`with_numbers`). A training is very
#: unlikely to print them. The second constant is the least number of characters of such a number that a regex must
#: match.
_STAND_INS = {"nan": "0.73905142681", "inf": "0.40286193757", "-inf": "0.61820347193"}
_LEAST = len("0.7390")
#: The forms in which Keras prints epochs and steps, ``Epoch 3/10`` and ``45/120 [===>…``, and the form that other
#: scripts use.
_EPOCH = re.compile(r"Epoch (\d{1,15})\b")
_STEPS = re.compile(r"(?:\x1b\[[0-9;]*m)*\s*(\d{1,15})/\d+\b")
_PLACES = re.compile(r"\b(step|iteration|iter|batch|epoch)\b\W{0,3}(\d{1,15})", re.IGNORECASE)


@dataclass(frozen=True)
class MetricPattern:
    """A metric and the regular expression that finds its value in a line.

    Attributes:
        name: The metric's name.
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
        """Compile the regex with the package ``regex``. Unlike ``re``, this package can stop a search that takes too
        long.

        Raises:
            ConfigurationError: the text is not a regex of Python's ``re``. The message shows the position of the error.
        """
        import regex

        try:
            re.compile(self.regex)  # re's errors have better positions
            return regex.compile(self.regex)
        except (RecursionError, OverflowError):
            raise ConfigurationError(
                f"metric {self.name!r}: the regex is nested too deeply, or repeats too often: {shown(self.regex)}."
            ) from None
        except (re.error, regex.error) as raised:
            error: Any = raised  # the stubs lack the attributes of these errors
            position = error.pos or 0
            raise ConfigurationError(
                f"metric {self.name!r}: the regex {shown(self.regex)} is not valid: {error.msg} at position {position}."
            ) from None

    @property
    def word(self) -> str:
        """Return a word that matching lines are likely to contain. If no line matches, the first line with this word is
        shown to the user.

        The result is the longest word of the regex. If the regex has no word, the result is the longest word of the
        metric's name.
        """
        plain = re.sub(r"\\.|\[[^\]]*\]|\(\?[^)]*\)?", " ", self.regex)
        words: list[str] = re.findall(r"[^\W\d]{2,}", plain) or re.findall(r"[^\W\d]{2,}", self.name) or [self.name]
        return max(words, key=len)

    def to_dict(self) -> dict[str, str]:
        """Return the metric as an item of SageMaker's ``MetricDefinitions``."""
        return {"Name": self.name, "Regex": self.regex}


def parse_metric_definitions(value: Any) -> tuple[MetricPattern, ...]:
    """Check the ``metric_definitions`` argument.

    Args:
        value: None, or a list whose items are ``{"Name": …, "Regex": …}`` or :class:`MetricPattern`.

    Raises:
        ConfigurationError: a key is unknown, or a regex is not valid or has no group.
    """
    if value is None:
        return ()
    example = "[{'Name': 'loss', 'Regex': 'loss: ([0-9.]+)'}]"
    return tuple(_parse_one(item) for item in items_of("metric_definitions", value, example))


def _parse_one(item: Any) -> MetricPattern:
    if isinstance(item, MetricPattern):
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
    return MetricPattern(item["Name"], item["Regex"])


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a process's output, to be searched for metrics.

    Attributes:
        text: The first :data:`LINE_LIMIT` bytes of the line, without the line end.
        host: The host that printed the line.
        rank: The rank of the process. None if the process has no rank.
        time_ns: The time at which the line arrived, in nanoseconds since the epoch.
        attempt: The number of the attempt.
        epoch: The number of the last epoch that Keras has printed before this line.
        place: The epoch and step in which the line was printed, if the line contains stand-ins (:func:`with_numbers`).
            None if the line is unchanged.
    """

    text: str
    host: str
    rank: int | None
    time_ns: int
    attempt: int
    epoch: int | None = None
    place: Mapping[str, int] | None = None

    def event(self, kind: str, data: Mapping[str, Any]) -> Event:
        """Create an event for the process that printed the line."""
        return Event(
            kind=kind, host=self.host, time_ns=self.time_ns, rank=self.rank, attempt=self.attempt, data=dict(data)
        )


class MetricExtractor:
    """Join the output of processes to lines, and create events for the metrics in the lines.

    Each metric is found at most once in a line, at the first match of its regex.

    Args:
        definitions: The metrics.
        rank_of: A function that returns the rank for the names of a host and a process (see
            :mod:`estimators.records.ranks`). None to derive the rank from the process's name.
    """

    def __init__(
        self,
        definitions: Iterable[MetricPattern],
        rank_of: Callable[[str, str | None], int | None] | None = None,
    ) -> None:
        self.rank_of = rank_of or (lambda host, process: wire.rank_of(process))
        self.definitions = tuple(definitions)
        self._rest: dict[tuple[str, str | None], bytearray] = {}
        self._complained: set[str] = set()
        self._epochs: dict[tuple[str, str | None], int] = {}  # the current epochs, as Keras prints them
        self._nearest: dict[str, str] = {}  # metric without a match -> a line that contains its word
        self._words = {definition.name: definition.word for definition in self.definitions}

    def feed(self, piece: Piece, *, time_ns: int, attempt: int = 0) -> Line | None:
        """Add a piece of output.

        Args:
            piece: The output of one process.
            time_ns: The time at which the output arrived, in nanoseconds since the epoch.
            attempt: The number of the attempt.

        Returns:
            The line that ends with the piece. None if no line ends or no metrics are defined.
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
        """Return the incomplete last lines of all processes. Call this method after the processes have ended."""
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

    def events(self, line: Line, definition: MetricPattern, caught: Caught) -> list[Event]:
        """Return the events for a metric that was found in a line.

        Args:
            line: The line.
            definition: The metric.
            caught: The text that the metric's regex matched.

        Returns:
            An event of kind ``metric`` with data ``{"name", "value"}``.

            If the line contains stand-ins (:func:`with_numbers`), the event has the kind ``not_a_number`` instead. The
            data then contains the real value (NaN or infinity), the epoch and the step.

            The regex of a metric may match a text that is not a number, or only a part of a number. The first time that
            this happens, there is also an event of kind ``warning``.
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
        """Return a warning for each metric whose regex matched no line. Metrics in ``known`` cause no warning.

        Args:
            known: The names of the metrics that were found in the output or reported by the script.
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
    """Return a copy of the line in which numbers, the stand-ins, replace ``nan`` and ``inf``.

    The copy is searched in addition to the line. For example, ``loss: ([0-9.]+)`` does not match ``loss: nan``, but
    matches the copy. Return None if the line contains neither ``nan`` nor ``inf``.
    """
    if not any(word in line.text for word in _WORDS):
        return None
    text, count = _NOT_A_NUMBER.subn(lambda found: _STAND_INS[str(float(found[0]))], line.text)
    if not count:
        return None
    return dataclasses.replace(line, text=text, place=_place(line.text, line.epoch))


def _stood_for(caught: str) -> float | None:
    """Return NaN or infinity if the matched text is the stand-in of this value. Otherwise return None."""
    for name, number in _STAND_INS.items():
        if len(caught) >= _LEAST and number.startswith(caught):
            return float(name)
    return None


def _place(text: str, epoch: int | None) -> dict[str, int]:
    """Return the epoch and step in which a line was printed.

    Numbers in the line take precedence over the last epoch that Keras has printed.
    """
    found: dict[str, int] = {"epoch": epoch} if epoch is not None else {}
    if (steps := _STEPS.match(text)) is not None:
        found["step"] = int(steps[1])
    for word, number in _PLACES.findall(text):
        found["epoch" if word.lower() == "epoch" else "step"] = int(number)
    return found


class FinalMetrics:
    """The last value of each metric, updated event by event.

    For each metric, only the last attempt that reported the metric counts. If several ranks reported the metric in this
    attempt, the value of the lowest rank is used.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[int, float], float, int]] = {}

    def add(self, event: Event) -> None:
        """Update the values with an event. Ignore events that are not metrics."""
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
        """Return the names of the metrics that have a value."""
        return self._last.keys()

    def to_list(self) -> list[dict[str, Any]]:
        """Return the list ``FinalMetricDataList`` of DescribeTrainingJob, in the order of the metrics' first values."""
        return [
            {"MetricName": name, "Value": value, "Timestamp": time_ns / 1e9}
            for name, (_, value, time_ns) in self._last.items()
        ]


def system_metrics(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the hosts' resource usage as metrics. Each number becomes one metric.

    Args:
        events: The job's events. Only events of kind ``resources`` are used.
    """
    for event in events:
        for name, value in event.data.items() if event.kind == "resources" else ():
            if isinstance(value, int | float):
                yield dataclasses.replace(event, kind="metric", data={"name": name, "value": value})


def metrics_frame(events: Iterable[Event], *, start: float | None = None) -> pandas.DataFrame:
    """Return a DataFrame of a job's metrics. Each value has a row, in the order of arrival.

    Args:
        events: The job's events. Only metrics are used.
        start: The origin of ``elapsed_s``, in seconds since the epoch. None to use the time of the first value.

    Returns:
        A DataFrame with the columns ``time`` (UTC), ``elapsed_s`` (seconds), ``attempt``, ``rank`` (missing for
        processes without a rank), ``name``, ``value`` and ``host``.
    """
    import pandas

    times, attempts, found_ranks, names, values, hosts = [], [], [], [], [], []
    for event in events:  # a job may have millions of events; lists of values need a tenth of the events' memory
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
