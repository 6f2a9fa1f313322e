"""Send the live updates of a job's page: log lines, and notices of other changes."""

from __future__ import annotations

import collections
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool

from container.contract.frozen import dataclass
from estimators.job.errors import JobNotFoundError, RecordError
from estimators.job.log_redaction import text_mask
from estimators.job.text import visible
from estimators.records.logs import LogLine, LogReader, size_of
from estimators.records.record import JobRecord
from estimators.records.status import is_terminal

#: The maximum number of lines that are sent at once, for example when a page is opened. The record has all lines.
LAST_LINES = 1000
#: The maximum number of characters of a line that are sent.
LINE_LIMIT = 2000

#: The levels of a filter, which accepts lines of its level and of more severe levels. The most severe level is the
#: last.
LEVELS = ("warning", "error")

#: The delay between two polls of a record is the poll's CPU time, multiplied by ``_COST``. An open page thus uses about
#: one percent of a core. The other values are the shortest and the longest delay, in seconds.
_PACE_S = 0.1
_COST = 100
_SELDOM_S = 2.0
#: Number of polls after which a comment is sent. Sending fails if the client has closed the connection.
_LOOKS_PER_COMMENT = 100

#: Errors in the formats of Python's logging, Abseil (``E1121 …``), TensorFlow (``2026-11-21 … E tensorflow/…``) and
#: tracebacks.
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|^[EF]\d{4} |\d: [EF] \w|^Traceback \(|^[\w.]*(?:Error|Exception|Interrupt)(?::|$)"
)
#: A fast pattern that matches every line with a level, and some other lines.
_MAYBE = re.compile(rb"ERROR|CRITICAL|FATAL|WARN|Warning|Traceback|Error|Exception|Interrupt|^[EFW]\d{4} |\d: [EFW] ")
_WARNING = re.compile(r"\bWARN(?:ING)?\b|^W\d{4} |\d: W \w|\b\w*Warning:")


def level_of(text: str) -> str:
    """Return the severity of a line, judged by its text.

    Returns:
        "error", "warning", or an empty text if the line contains no level.
    """
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The filter of the lines that a page requests.

    Attributes:
        rank: The rank whose lines are accepted. None for all ranks.
        text: The text that accepted lines contain, ignoring case.
        level: The lowest level of accepted lines. Empty for all lines.
    """

    rank: int | None = None
    text: str = ""
    level: str = ""

    @property
    def everything(self) -> bool:
        """Return whether the filter accepts every line of the rank."""
        return not self.text and not self.level

    def fits(self, text: str, level: str) -> bool:
        """Return whether the filter accepts a line."""
        if self.level and (level not in LEVELS or LEVELS.index(level) < LEVELS.index(self.level)):
            return False
        return self.text.lower() in text.lower()


class PageFollower:
    """A reader of the new lines and other changes in a job's record.

    Each call of :meth:`look` continues at the end of the previous call.

    Args:
        record: The job's record.
        wanted: The filter of the lines.
    """

    def __init__(self, record: JobRecord, wanted: Wanted) -> None:
        self._record = record
        self._wanted = wanted
        self._reader = LogReader(record, wanted.rank)
        self._mask = text_mask(record.read_request())
        self._seen: tuple[Any, int] | None = None
        self._skipped = 0
        if wanted.everything:  # a search reads the whole log, a live view only its end
            self._skipped = self._reader.skip(LAST_LINES)
        self.over = False
        #: Set when the client has left, which stops a search through a long log.
        self.left = False
        #: How long to wait before the next poll, in seconds.
        self.pause_s = _PACE_S

    def look(self) -> list[tuple[str, Any]]:
        """Return the new lines and changes: pairs of an event's name and the event's data."""
        began = time.thread_time()
        found = self._new()
        self.pause_s = min(_SELDOM_S, max(_PACE_S, _COST * (time.thread_time() - began)))
        return found

    def _new(self) -> list[tuple[str, Any]]:
        status = self._record.read_status()
        self.over = is_terminal(status)
        last: collections.deque[list[Any]] = collections.deque(maxlen=LAST_LINES)
        count, self._skipped = self._skipped, 0
        for lines in self._reader.drain(final=self.over):
            if self.left:
                return []
            if self._wanted.everything:
                count += max(0, len(lines) - LAST_LINES)
                lines = lines[-LAST_LINES:]
            for line in self._shown(lines):
                count += 1
                last.append(line)
        found: list[tuple[str, Any]] = []
        if count:
            found.append(("log", {"skipped": count - len(last), "lines": list(last)}))
        seen = (status, size_of(self._record.events_file))
        if seen != self._seen:
            self._seen = seen
            text = str(status["TrainingJobStatus"])
            found.append(("status", {"status": text, "secondary": str(status.get("SecondaryStatus") or text)}))
        if self.over:
            found.append(("end", {}))
        return found

    def _shown(self, lines: list[LogLine]) -> Iterator[list[Any]]:
        wanted = self._wanted
        for line in lines:
            if wanted.level and not _MAYBE.search(line.data):
                continue
            text = line.text
            if wanted.text and wanted.text.lower() not in text.lower():
                continue  # skips the expensive part for most lines of a search
            text = self._mask(text)
            level = level_of(text[:LINE_LIMIT])
            if wanted.fits(text, level):
                yield [line.time_ns // 1_000_000, _who(line), visible(text)[:LINE_LIMIT], level]


async def follow(record: JobRecord, wanted: Wanted, ending: threading.Event) -> AsyncIterator[str]:
    """Yield server-sent events until the job or the server ends.

    Args:
        record: The job's record.
        wanted: The filter of the lines.
        ending: An event that is set when the server stops. The event ends this function, so that an open page does not
            delay the server.
    """
    follower: PageFollower | None = None
    try:
        follower = await run_in_threadpool(PageFollower, record, wanted)
        looks = 0
        while not follower.over and not ending.is_set():
            for name, data in await anyio.to_thread.run_sync(follower.look, abandon_on_cancel=True):
                yield f"event: {name}\ndata: {json.dumps(data)}\n\n"
            looks += 1
            if looks % _LOOKS_PER_COMMENT == 0:
                yield ": still here\n\n"
            if not follower.over:
                await anyio.sleep(follower.pause_s)
    except (JobNotFoundError, RecordError) as error:
        yield f"event: gone\ndata: {json.dumps({'text': str(error)})}\n\n"
    finally:
        if follower is not None:
            follower.left = True


def whole_log(record: JobRecord) -> Iterator[str]:
    """Yield the whole log of a job as text, in portions. Secrets of the job are masked."""
    mask = text_mask(record.read_request())
    for lines in LogReader(record).drain(final=is_terminal(record.read_status())):
        texts = (mask(line.text) for line in lines)
        yield "".join(f"[{_who(line)}] {text}\n" for line, text in zip(lines, texts, strict=True))


def _who(line: LogLine) -> str:
    process = f"rank {line.rank}" if line.rank is not None else line.process or "toolkit"
    return f"{line.host} {process}"
