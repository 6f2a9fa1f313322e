"""A job's logs from CloudWatch: every line once, in order, also after a pause of any length.

Streams are ``<job>/algo-N-<start>`` in ``/aws/sagemaker/TrainingJobs``; a host that was started again has another one.
While it goes on, a stream is read by CloudWatch's own token; after a pause (tokens live for a day) by the time of the
last line, which is inclusive, and the number of lines of that very millisecond that were taken already.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from estimators.backends.sagemaker.explaining import code_of, is_missing

GROUP = "/aws/sagemaker/TrainingJobs"

#: Pages that are taken of a stream at a time; the rest comes with the next look. A page has up to 10,000 lines.
_PAGES = 10
_BAD_TOKEN = ("InvalidParameterException", "InvalidNextToken")


@dataclasses.dataclass(frozen=True)
class ServiceLine:
    """A line of a host's output.

    Attributes:
        host: The host.
        attempt: How often the host had been started before.
        time_ns: When, in nanoseconds since the epoch.
        data: The line with its newline.
    """

    host: str
    attempt: int
    time_ns: int
    data: bytes


@dataclasses.dataclass
class _LogStream:
    """How far one stream has been read.

    Attributes:
        host: Whose it is.
        started: The number at its name's end, by which a host's streams are ordered.
        last_ms: Time of the last line that was taken, in milliseconds since the epoch.
        at_last: How many lines of that time were taken.
        token: CloudWatch's token for what follows.
    """

    name: str
    host: str
    started: int
    last_ms: int = 0
    at_last: int = 0
    token: str | None = None


class LogFollower:
    """Reads the logs of one job, in one thread at a time.

    Args:
        client: The client of CloudWatch Logs.
        job: The job's name.
        hosts: How many hosts it has.
        cursor: What :attr:`cursor` was, to go on from there.
    """

    def __init__(self, client: Any, job: str, hosts: int, cursor: Mapping[str, Any] | None = None) -> None:
        #: The client of CloudWatch Logs.
        self.client = client
        self._job = job
        self._hosts = hosts
        self._name = re.compile(rf"{re.escape(job)}/(algo-\d+)(?:-(\d+))?")
        self._streams: dict[str, _LogStream] = {}
        for name, (last_ms, at_last) in (cursor or {}).items():
            stream = self._add(name)
            if stream is not None:
                stream.last_ms, stream.at_last = int(last_ms), int(at_last)
        #: Whether there was more than a look takes.
        self.more = False

    @property
    def cursor(self) -> dict[str, list[int]]:
        """Stream -> time of the last line taken, and how many of that time; JSON-serialisable."""
        return {name: [stream.last_ms, stream.at_last] for name, stream in self._streams.items()}

    @property
    def complete(self) -> bool:
        """Whether every host has a stream."""
        return len({stream.host for stream in self._streams.values()}) >= self._hosts

    def read(self, *, discover: bool = True) -> list[ServiceLine]:
        """What is new, by time; within a host in its order.

        Args:
            discover: Whether to look for new streams too.

        Raises:
            Exception: botocore's. Nothing is lost by it: what was not returned comes with a later call.
        """
        if discover:
            self._discover()
        self.more = False
        before = {name: dataclasses.replace(stream) for name, stream in self._streams.items()}
        lines: list[ServiceLine] = []
        try:
            for stream in self._streams.values():
                lines += self._read(stream)
        except BaseException:
            self._streams = before
            raise
        lines.sort(key=lambda line: (line.attempt, line.time_ns))
        return lines

    def _discover(self) -> None:
        token: dict[str, str] = {}
        while True:
            try:
                answer = self.client.describe_log_streams(
                    logGroupName=GROUP, logStreamNamePrefix=f"{self._job}/", orderBy="LogStreamName", **token
                )
            except Exception as error:
                if is_missing(error):
                    return  # the group comes with an account's first job
                raise
            for found in answer.get("logStreams") or ():
                self._add(str(found["logStreamName"]))
            following = answer.get("nextToken")
            if not following or {"nextToken": following} == token:
                return
            token = {"nextToken": following}

    def _add(self, name: str) -> _LogStream | None:
        match = self._name.fullmatch(name)
        if match is None:
            return None
        if name not in self._streams:
            self._streams[name] = _LogStream(name, match.group(1), int(match.group(2) or 0))
        return self._streams[name]

    def _read(self, stream: _LogStream) -> list[ServiceLine]:
        attempt = sum(other.host == stream.host and other.started < stream.started for other in self._streams.values())
        lines: list[ServiceLine] = []
        for _ in range(_PAGES):
            answer, skip = self._page(stream)
            events = answer.get("events") or ()
            for event in events:
                time_ms = int(event["timestamp"])
                if skip and time_ms == stream.last_ms:
                    skip -= 1
                    continue
                skip = 0
                if time_ms == stream.last_ms:
                    stream.at_last += 1
                else:
                    stream.last_ms, stream.at_last = time_ms, 1
                message = str(event.get("message") or "")
                lines.append(ServiceLine(stream.host, attempt, time_ms * 1_000_000, message.encode() + b"\n"))
            following = answer.get("nextForwardToken")
            ended = not following or following == stream.token
            stream.token = following or stream.token
            if ended:
                return lines
        self.more = True
        return lines

    def _page(self, stream: _LogStream) -> tuple[Mapping[str, Any], int]:
        """A page, and how many of its first lines were taken already."""
        named = {"logGroupName": GROUP, "logStreamName": stream.name, "startFromHead": True}
        if stream.token is not None:
            try:
                return self.client.get_log_events(**named, nextToken=stream.token), 0
            except Exception as error:
                if code_of(error) not in _BAD_TOKEN:
                    raise
                stream.token = None
        start = {"startTime": stream.last_ms} if stream.at_last else {}
        try:
            return self.client.get_log_events(**named, **start), stream.at_last
        except Exception as error:
            if is_missing(error):
                return {}, 0
            raise
