"""Search the lines of a job's output for the values of the job's metrics.

Some regular expressions take exponential time on some lines. The package ``regex`` stops such a search after a timeout.
Therefore the supervisor can search in its own process.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from container.contract.names import cut
from estimators.job.metrics import Line, MetricPattern
from estimators.job.numbers import BESIDE_LIMIT, Caught

if TYPE_CHECKING:
    from regex._main import Match, Pattern

#: How long one pattern may search in each window of ``_WINDOW_LINES`` lines in total, in seconds.
_SECONDS = 1.0
_WINDOW_LINES = 4096
#: If a pattern took too long in this number of windows, fleetfit stops searching for the metric.
_STRIKES = 2
#: The text that a group matches is cut to this number of characters. Numbers are shorter.
_CAUGHT_LIMIT = 400


@dataclasses.dataclass
class _Pattern:
    definition: MetricPattern
    compiled: Pattern[str]
    seconds_left: float = _SECONDS
    strikes: int = 0
    #: Whether a warning has said that another group than the first has matched.
    told: bool = False


class Matching:
    """The regular expressions of a job's metrics.

    Args:
        definitions: The definitions of the metrics.
    """

    def __init__(self, definitions: Sequence[MetricPattern]) -> None:
        self._patterns = [_Pattern(definition, definition.compile()) for definition in definitions]
        self._lines = 0
        #: The warnings about patterns that took too long, or whose first group did not match. The caller removes each
        #: warning that it has reported.
        self.warnings: list[str] = []

    def search(self, line: Line) -> Iterator[tuple[MetricPattern, Caught]]:
        """Yield each metric that a line contains, with the text that was matched by the first group of the metric's
        regex.
        """
        if self._lines % _WINDOW_LINES == 0:
            for pattern in self._patterns:
                pattern.seconds_left = _SECONDS
        self._lines += 1
        for pattern in self._patterns:
            if pattern.seconds_left <= 0 or pattern.strikes >= _STRIKES:
                continue
            began = time.monotonic()
            try:
                match = pattern.compiled.search(line.text, timeout=pattern.seconds_left)
            except TimeoutError:
                match = None
                pattern.seconds_left = 0.0
            pattern.seconds_left -= time.monotonic() - began
            if pattern.seconds_left <= 0:
                self._strike(pattern)
            if match is not None and match[1] is None and line.place is None:
                self._warn_of_group(pattern, match)
            if match is not None and match[1] is not None:
                start, end = match.span(1)
                yield (
                    pattern.definition,
                    Caught(
                        text=line.text[start : min(end, start + _CAUGHT_LIMIT)],
                        before=line.text[max(0, start - BESIDE_LIMIT) : start],
                        after=line.text[end : end + BESIDE_LIMIT] if end == match.end() else "",
                    ),
                )

    def _warn_of_group(self, pattern: _Pattern, match: Match[str]) -> None:
        """Warn once about a regex that has matched without its first group, such as ``a: ([0-9.]+)|b: ([0-9.]+)``."""
        if pattern.told or match.lastindex is None:
            return
        pattern.told = True
        definition = pattern.definition
        self.warnings.append(
            f"metric {definition.name!r}: the regex {definition.regex!r} matched {cut(match[0], 80)!r} without its "
            "first group. Only the first group can be the number: write alternatives as (?:a|b): ([0-9.]+), or as two "
            "metric definitions of the same name."
        )

    def _strike(self, pattern: _Pattern) -> None:
        """Add a warning about a pattern whose searches have taken more than ``_SECONDS`` seconds in a window of
        ``_WINDOW_LINES`` lines.

        The pattern is skipped for the other lines of the window. After ``_STRIKES`` such windows, the pattern is
        skipped for all lines.
        """
        pattern.strikes += 1
        definition = pattern.definition
        self.warnings.append(
            f"metric {definition.name!r}: the regex {definition.regex!r} takes too long"
            + (
                "; fleetfit no longer searches for this metric"
                if pattern.strikes >= _STRIKES
                else f" on some lines; up to {_WINDOW_LINES:,} lines are not searched for this metric"
            )
            + ". Avoid nested repetitions, such as (a+)+."
        )
