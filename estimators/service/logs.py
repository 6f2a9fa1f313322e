"""Implement the operations of CloudWatch Logs. The events come from the logs in the jobs' records.

The log group is ``/aws/sagemaker/TrainingJobs``. The log stream of a host is ``<job>/algo-<n>-<time of creation>``.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.strategies import ParameterServer
from estimators.job.errors import FleetfitError
from estimators.job.log_redaction import text_mask
from estimators.job.request import TrainingJobSpec
from estimators.job.secrets import MASK
from estimators.service.errors import ServiceError
from estimators.service.records import Job, Jobs
from estimators.service.settings import ACCOUNT
from estimators.service.streams import LogEvent, LogStream, Streams

GROUP = "/aws/sagemaker/TrainingJobs"

#: CloudWatch's limits for one response: the number of events, of bytes, and of streams.
_MOST_EVENTS = 10_000
_MOST_BYTES = 1 << 20
_MOST_STREAMS = 50

#: Number of jobs whose facts are cached.
_KEPT = 4096

_STREAM = re.compile(r"([A-Za-z0-9-]{1,63})/(algo-[1-9]\d{0,4})-(\d{1,12})")
_TOKEN = re.compile(r"([fb])/(\d{1,56})")

#: Secondary statuses of jobs that have not started a host yet.
_BEFORE = ("Starting", "Pending", "DownloadingTrainingImage")


@dataclass(frozen=True)
class _Facts:
    """Facts about a job's streams, from the job's request.

    Attributes:
        hosts: The hosts with which the job begins.
        labelled: Whether each line begins with a label that names the process.
        mask: A function that hides secrets in a text.
    """

    hosts: tuple[str, ...]
    labelled: bool
    mask: Callable[[str], str]


class _Opened:
    """A job's log stream, opened for one request."""

    def __init__(self, name: str, job: Job, stream: LogStream, mask: Callable[[str], str]) -> None:
        self.name = name
        self.job = job
        self._stream = stream
        self._mask = mask
        self.count = stream.extend(over=job.over)

    def events(self, start: int, stop: int, *, last: bool = False) -> list[LogEvent]:
        """Return as many events of a range as fit into one response. Secrets of the job are masked.

        Args:
            start: The number of the range's first event.
            stop: The number of the range's last event plus 1.
            last: Whether to return the last events that fit. If False, the first events that fit are returned.
        """
        found = self._stream.read(start, stop, most_bytes=_MOST_BYTES, last=last)
        whole = "\n".join([event.text for event in found])
        if self._mask(whole) != whole:
            found = [LogEvent(time, self._mask(text)) for time, text in found]
        kept: list[LogEvent] = []
        size = 0
        for event in reversed(found) if last else found:
            size += _bytes(event)
            if kept and size > _MOST_BYTES:
                break
            kept.append(event)
        return kept[::-1] if last else kept

    def between(self, start_ms: int | None, end_ms: int | None) -> tuple[int, int]:
        """Return which events were printed in a period, as a range of the events' numbers.

        Args:
            start_ms: The beginning of the period, in milliseconds since the epoch. If None, the first event.
            end_ms: The end of the period, in milliseconds since the epoch. If None, the last event.

        Returns:
            The number of the first event, and the number of the last event plus 1.
        """
        first = self._stream.first_at(start_ms, self.count) if start_ms else 0
        last = self._stream.first_at(end_ms, self.count) if end_ms is not None else self.count
        return first, max(first, last)

    def edges(self) -> tuple[int, int] | None:
        """Return the times of the first and the last event, in milliseconds. Return None if there are no events."""
        if not self.count:
            return None
        return self._stream.times(0, 1)[0], self._stream.times(self.count - 1, self.count)[0]


class Logs:
    """The operations of CloudWatch Logs.

    Args:
        jobs: The jobs on record.
        secret: The secret key that jobs inherit. The key is masked in the jobs' output.
    """

    def __init__(self, jobs: Jobs, secret: str = "") -> None:
        self._jobs = jobs
        self._secret = secret
        self._streams = Streams()
        self._facts: dict[tuple[str, float], _Facts] = {}

    # --- the operations ---

    def describe_streams(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a DescribeLogStreams request.

        If the requested prefix names a job, the response contains all streams of the job, even if there are many. If
        the response had a further page, the SageMaker SDK 2.x would request pages endlessly.
        """
        _check_group(request)
        prefix = request.get("logStreamNamePrefix") or ""
        found = list(self._find(prefix))
        if request.get("orderBy") == "LastEventTime":
            found.sort(key=lambda opened: (opened.edges() or (0, 0))[1])
        else:
            found.sort(key=lambda opened: opened.name)
        if request.get("descending"):
            found.reverse()
        if "/" in prefix:
            return {"logStreams": [self._described(opened) for opened in found]}
        start = _decode(request.get("nextToken"), int) or 0
        stop = start + int(request.get("limit") or _MOST_STREAMS)
        answer: dict[str, Any] = {"logStreams": [self._described(opened) for opened in found[start:stop]]}
        if stop < len(found):
            answer["nextToken"] = _encode(stop)
        return answer

    def get_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a GetLogEvents request."""
        _check_group(request)
        opened = self._open(str(request["logStreamName"]))
        first, last = opened.between(request.get("startTime"), request.get("endTime"))
        most = int(request.get("limit") or _MOST_EVENTS)
        token = request.get("nextToken")
        if token is not None:
            match = _TOKEN.fullmatch(token)
            if match is None:
                raise _invalid("The specified nextToken is invalid.")
            forward, place = match[1] == "f", min(int(match[2]), opened.count)
        else:
            forward = bool(request.get("startFromHead"))
            place = first if forward else last
        if forward:
            start, stop = max(place, first), min(last, max(place, first) + most)
            events = opened.events(start, stop)
            stop = start + len(events)
        else:
            stop = min(place, last)
            start = max(first, stop - most)
            events = opened.events(start, stop, last=True)
            start = stop - len(events)
        if not events:
            start = stop = place if token is not None else (first if forward else last)
        return {
            "events": [_event(event) for event in events],
            "nextForwardToken": f"f/{stop:056d}",
            "nextBackwardToken": f"b/{start:056d}",
        }

    def filter_events(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a FilterLogEvents request: return the events of several streams, ordered by time."""
        _check_group(request)
        if request.get("startFromHead") is False:
            raise _invalid("startFromHead: a fleetfit endpoint returns the earliest events first.")
        matches = _pattern(request.get("filterPattern") or "")
        names = request.get("logStreamNames")
        if names is not None:
            if request.get("logStreamNamePrefix"):
                raise _invalid("logStreamNames and logStreamNamePrefix exclude each other.")
            found = [self._open(name) for name in names]
        else:
            found = list(self._find(request.get("logStreamNamePrefix") or ""))
        places: dict[str, int] = _decode(request.get("nextToken"), dict) or {}
        most = int(request.get("limit") or _MOST_EVENTS)
        merged = heapq.merge(
            *(self._all(opened, places, request) for opened in found), key=lambda item: (item[2].time_ms, item[0])
        )
        answer: list[dict[str, Any]] = []
        size = 0
        for name, number, event in merged:
            wanted = matches(event.text)
            size += _bytes(event) if wanted else 0
            if len(answer) >= most or (answer and size > _MOST_BYTES):
                return {"events": answer, "searchedLogStreams": [], "nextToken": _encode(places)}
            places[name] = number + 1
            if wanted:
                answer.append({**_event(event), "logStreamName": name, "eventId": _event_id(name, number, event)})
        return {"events": answer, "searchedLogStreams": []}

    def _all(
        self, opened: _Opened, places: Mapping[str, int], request: Mapping[str, Any]
    ) -> Iterator[tuple[str, int, LogEvent]]:
        end = request.get("endTime")
        # Unlike GetLogEvents, FilterLogEvents also returns the events at the end of the period.
        first, last = opened.between(request.get("startTime"), None if end is None else end + 1)
        place = places.get(opened.name, 0)
        number = max(first, place if isinstance(place, int) else 0)
        while number < last and (events := opened.events(number, min(last, number + 1000))):
            for event in events:
                yield opened.name, number, event
                number += 1

    # --- streams ---

    def _find(self, prefix: str) -> Iterator[_Opened]:
        name, slash, _ = prefix.partition("/")
        if slash:
            job = self._jobs.find(name)
            candidates = iter([job] if job is not None else [])
        else:
            candidates = (job for job in self._jobs.all() if job.name.startswith(prefix))
        for job in candidates:
            yield from (opened for opened in self._of(job) if opened.name.startswith(prefix))

    def _of(self, job: Job, only: str | None = None) -> Iterator[_Opened]:
        secondary = job.status.get("SecondaryStatus")
        known = job.record.hosts
        began = True
        if job.over or secondary in _BEFORE:
            began = any((job.record.host_dir(host) / "logs").is_dir() for host in known)
        facts = self._facts_of(job) if began else None
        if facts is None:
            return
        for host in dict.fromkeys((*facts.hosts, *known)):  # further hosts may have joined an elastic job
            if only in (None, host):
                name = f"{job.name}/{host}-{int(job.created)}"
                stream = self._streams.get(job.record, host, labelled=facts.labelled)
                yield _Opened(name, job, stream, facts.mask)

    def _facts_of(self, job: Job) -> _Facts | None:
        """Return the facts about a job's streams. The facts are cached, because a job's request does not change.

        Return None if the request is not valid.
        """
        key = (job.name, job.created)
        facts = self._facts.get(key)
        if facts is None:
            request = job.record.read_request()
            try:
                spec = TrainingJobSpec.from_request(request)
                labelled = spec.size > 1 or isinstance(spec.strategy, ParameterServer)
            except (FleetfitError, ValueError):
                return None
            if len(self._facts) >= _KEPT:
                self._facts.clear()
            facts = self._facts[key] = _Facts(spec.hosts, labelled, self._masking(request))
        return facts

    def _masking(self, request: Mapping[str, Any]) -> Callable[[str], str]:
        mask, secret = text_mask(request), self._secret
        return (lambda text: mask(text).replace(secret, MASK)) if secret else mask

    def _open(self, name: str) -> _Opened:
        match = _STREAM.fullmatch(name)
        job = self._jobs.find(match[1]) if match is not None else None
        if match is not None and job is not None and match[3] == str(int(job.created)):
            for opened in self._of(job, match[2]):
                return opened
        raise _missing("The specified log stream does not exist.")

    def _described(self, opened: _Opened) -> dict[str, Any]:
        group = f"arn:aws:logs:{self._jobs.region}:{ACCOUNT}:log-group:{GROUP}"
        edges = opened.edges()
        described: dict[str, Any] = {
            "logStreamName": opened.name,
            "creationTime": int(opened.job.created * 1000),
            "arn": f"{group}:log-stream:{opened.name}",
            "storedBytes": 0,
        }
        if edges is not None:
            described |= {"firstEventTimestamp": edges[0], "lastEventTimestamp": edges[1]}
            described["lastIngestionTime"] = edges[1]
        return described


def _bytes(event: LogEvent) -> int:
    """Return the size of an event as CloudWatch counts it: the message in UTF-8, and 26 bytes."""
    return len(event.text.encode()) + 26


def _event(event: LogEvent) -> dict[str, Any]:
    return {"timestamp": event.time_ms, "message": event.text, "ingestionTime": event.time_ms}


def _event_id(stream: str, number: int, event: LogEvent) -> str:
    """Return a unique id of 56 digits for an event.

    ``aws logs tail`` omits an event if it has already printed an event with the same id and time.
    """
    mark = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "big")
    return f"{event.time_ms:016d}{mark:020d}{number:020d}"


def _check_group(request: Mapping[str, Any]) -> None:
    name = request.get("logGroupName") or str(request.get("logGroupIdentifier") or "").rpartition(":log-group:")[2]
    if name.removesuffix(":*") != GROUP:
        raise _missing("The specified log group does not exist.")


def _missing(message: str) -> ServiceError:
    return ServiceError("ResourceNotFoundException", message)


def _invalid(message: str) -> ServiceError:
    return ServiceError("InvalidParameterException", message)


def _pattern(text: str) -> Callable[[str], bool]:
    """Return a function that checks whether a line matches a filter pattern of words and quoted phrases.

    A line matches if it contains each word and phrase. It must not contain a word or phrase that the pattern marks with
    a preceding ``-``. If the pattern marks all words and phrases with a preceding ``?``, one of them suffices. As in
    CloudWatch, all other patterns ignore words and phrases with ``?``.
    """
    text = text.strip()
    if text.startswith(("{", "[", "%")):
        raise _invalid("filterPattern: a fleetfit endpoint supports only words and quoted phrases.")
    terms = [(mark, quoted or word) for mark, quoted, word in re.findall(r'([-?]?)(?:"([^"]*)"|(\S+))', text)]
    if terms and all(mark == "?" for mark, _ in terms):
        return lambda line: any(term in line for _, term in terms)
    return lambda line: all((term in line) is (mark != "-") for mark, term in terms if mark != "?")


def _encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def _decode(token: str | None, kind: type) -> Any:
    if token is None:
        return None
    try:
        value = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and not 0 <= value < 1 << 31):
        raise _invalid("The specified nextToken is invalid.")
    return value
