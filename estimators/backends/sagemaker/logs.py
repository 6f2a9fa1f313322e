"""Read a job's logs from CloudWatch. Every line is read exactly once and in order, also after a pause of any length.

The name of a stream in the log group ``/aws/sagemaker/TrainingJobs`` is ``<job>/algo-N-<start>``. A restarted host has
a new stream.

While polls continue, each poll starts at the token that CloudWatch has returned for the next page. Such a token expires
after a day. After a pause, reading therefore continues at the time of the last line. CloudWatch then returns all lines
with that time again. The reader stores how many lines with that time it has read, and skips these lines.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from estimators.backends.sagemaker.explaining import code_of, is_missing

GROUP = "/aws/sagemaker/TrainingJobs"

#: Maximum number of pages that one poll reads from a stream. A page has up to 10,000 lines.
_PAGES = 10
_BAD_TOKEN = ("InvalidParameterException", "InvalidNextToken")


@dataclass(frozen=True)
class ServiceLine:
    """A line of a host's output.

    Attributes:
        host: The host.
        attempt: The number of earlier starts of the host.
        time_ns: The time that CloudWatch gives for the line, in nanoseconds since the epoch.
        data: The line, including its newline.
    """

    host: str
    attempt: int
    time_ns: int
    data: bytes


@dataclasses.dataclass
class _LogStream:
    """The position up to which one log stream was read.

    Attributes:
        name: The name of the stream.
        host: The host that writes the stream.
        started: The number at the end of the stream's name, which orders the streams of one host.
        last_ms: The time of the last line that was read, in milliseconds since the epoch.
        at_last: The number of lines with the time ``last_ms`` that were read.
        token: CloudWatch's token for the next page.
        skip: The number of lines with the time ``last_ms`` that were read before and that the next pages contain again.
    """

    name: str
    host: str
    started: int
    last_ms: int = 0
    at_last: int = 0
    token: str | None = None
    skip: int = 0


class LogFollower:
    """A reader of the logs of one job. Only one thread at a time may use a reader.

    Args:
        client: The client of CloudWatch Logs.
        job: The job's name.
        hosts: The job's number of hosts.
        cursor: An earlier value of :attr:`cursor`, from which reading continues.
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
        #: Whether the last :meth:`read` left lines unread.
        self.more = False

    @property
    def cursor(self) -> dict[str, list[int]]:
        """Return the position up to which the logs were read, in a form that can be stored as JSON.

        The result maps the name of each stream to two numbers. The first is the time of the last line that was read, in
        milliseconds since the epoch. The second is the number of lines with that time that were read.
        """
        return {name: [stream.last_ms, stream.at_last] for name, stream in self._streams.items()}

    @property
    def complete(self) -> bool:
        """Return whether every host has a log stream."""
        return len({stream.host for stream in self._streams.values()}) >= self._hosts

    def read(self, *, discover: bool = True) -> list[ServiceLine]:
        """Return the new lines of all streams.

        The lines are ordered by attempt, then by time. The lines of one stream keep their order.

        Args:
            discover: Whether to search for new streams, too.

        Raises:
            Exception: an error of botocore. No lines are lost, because a later call returns them.
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
                    return  # the log group is created with an account's first job
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
            answer = self._page(stream)
            for event in answer.get("events") or ():
                time_ms = int(event["timestamp"])
                if stream.skip and time_ms == stream.last_ms:
                    stream.skip -= 1
                    continue
                stream.skip = 0
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

    def _page(self, stream: _LogStream) -> Mapping[str, Any]:
        """Return the next page of a stream. If there is no valid token, the page begins at the time of the last line
        that was read, and ``stream.skip`` is set.
        """
        named = {"logGroupName": GROUP, "logStreamName": stream.name, "startFromHead": True}
        if stream.token is not None:
            try:
                return dict(self.client.get_log_events(**named, nextToken=stream.token))
            except Exception as error:
                if code_of(error) not in _BAD_TOKEN:
                    raise
                stream.token = None
        start = {"startTime": stream.last_ms} if stream.at_last else {}
        stream.skip = stream.at_last
        try:
            return dict(self.client.get_log_events(**named, **start))
        except Exception as error:
            if is_missing(error):
                return {}
            raise
