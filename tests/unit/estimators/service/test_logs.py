"""What CloudWatch Logs' clients count on beside the order of events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import unserved

from container.contract.wire import Piece
from estimators.records.states import SecondaryStatus
from estimators.service.errors import ServiceError
from estimators.service.logs import GROUP, Logs
from estimators.service.records import Jobs


def logs_of(home: Path, pieces: Sequence[Piece], *, hosts: int = 1) -> Logs:
    unserved.write_job(home, "job", pieces, SecondaryStatus.TRAINING, hosts=hosts).release()
    return Logs(Jobs(home, "us-east-1"))


def test_events_of_two_hosts_in_the_same_moment_have_different_ids(tmp_path: Path) -> None:
    """``aws logs tail`` takes events with the same id and time for one."""
    pieces = [Piece(host, None, b"line %d\n" % number) for host in ("algo-1", "algo-2") for number in range(3)]
    logs = logs_of(tmp_path, pieces, hosts=2)
    events = logs.filter_events({"logGroupName": GROUP, "logStreamNamePrefix": "job/"})["events"]
    assert len({event["eventId"] for event in events}) == len(events) == 6
    assert all(len(event["eventId"]) == 56 and event["eventId"].isdecimal() for event in events)


def test_the_end_of_a_period_is_inclusive_for_filtered_events_only(tmp_path: Path) -> None:
    logs = logs_of(tmp_path, [Piece("algo-1", None, b"line\n")])
    request = {"logGroupName": GROUP, "logStreamNames": ["job/algo-1-1"]}
    (event,) = logs.filter_events(request)["events"]
    assert logs.filter_events({**request, "endTime": event["timestamp"]})["events"] == [event]
    assert logs.filter_events({**request, "endTime": event["timestamp"] - 1})["events"] == []
    request = {"logGroupName": GROUP, "logStreamName": "job/algo-1-1", "endTime": event["timestamp"]}
    assert logs.get_events(request)["events"] == []


def test_a_request_for_the_latest_filtered_events_is_refused(tmp_path: Path) -> None:
    logs = logs_of(tmp_path, [Piece("algo-1", None, b"line\n")])
    with pytest.raises(ServiceError, match="startFromHead"):
        logs.filter_events({"logGroupName": GROUP, "startFromHead": False, "limit": 1})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("?loss ?error", ["loss 1", "an error"]),
        ('?"an error" ?"no such"', ["an error"]),
        ("?error loss", ["loss 1"]),
        ("-loss -error", ["step 2"]),
        ("", ["loss 1", "an error", "step 2"]),
    ],
)
def test_a_filter_pattern_selects_lines_as_in_cloudwatch(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    lines = [b"loss 1\n", b"an error\n", b"step 2\n"]
    logs = logs_of(tmp_path, [Piece("algo-1", None, line) for line in lines])
    found = logs.filter_events({"logGroupName": GROUP, "filterPattern": pattern})["events"]
    assert [event["message"] for event in found] == expected


def test_a_host_that_joined_an_elastic_job_has_a_stream(tmp_path: Path) -> None:
    logs = logs_of(tmp_path, [Piece(host, None, b"line\n") for host in ("algo-1", "algo-2")], hosts=1)
    streams = logs.describe_streams({"logGroupName": GROUP, "logStreamNamePrefix": "job/"})["logStreams"]
    assert [stream["logStreamName"] for stream in streams] == ["job/algo-1-1", "job/algo-2-1"]
    assert len(logs.filter_events({"logGroupName": GROUP, "logStreamNamePrefix": "job/"})["events"]) == 2


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_a_page_of_found_events_has_at_most_a_mebibyte_of_utf8_and_none_is_lost(tmp_path: Path, letter: str) -> None:
    lines = [f"{number} {letter * 40_000}" for number in range(30)]
    logs = logs_of(tmp_path, [Piece("algo-1", None, f"{line}\n".encode()) for line in lines])
    request = {"logGroupName": GROUP, "logStreamNamePrefix": "job/"}
    pages = [logs.filter_events(request)]
    while token := pages[-1].get("nextToken"):
        pages.append(logs.filter_events({**request, "nextToken": token}))
    sizes = [sum(len(event["message"].encode()) + 26 for event in page["events"]) for page in pages]
    assert max(sizes) <= 1 << 20
    assert [event["message"] for page in pages for event in page["events"]] == lines


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(("line", "hosts"), [(b"a" * 100, 2), (b"\xff" * 40_000, 1)], ids=["labels", "no UTF-8"])
def test_a_page_of_a_stream_has_at_most_a_mebibyte_and_none_is_lost(
    tmp_path: Path, line: bytes, hosts: int, head: bool
) -> None:
    """The labels of the hosts count, and what takes the place of bytes that are no UTF-8."""
    total = (3 << 19) // len(line)
    lines = [b"%d %s\n" % (number, line) for number in range(total)]
    logs = logs_of(tmp_path, [Piece("algo-1", None, one) for one in lines], hosts=hosts)
    request = {"logGroupName": GROUP, "logStreamName": "job/algo-1-1", "startFromHead": head}
    direction = "nextForwardToken" if head else "nextBackwardToken"
    pages = [logs.get_events(request)]
    while pages[-1]["events"]:
        pages.append(logs.get_events({**request, "nextToken": pages[-1][direction]}))
    sizes = [sum(len(event["message"].encode()) + 26 for event in page["events"]) for page in pages]
    assert max(sizes) <= 1 << 20
    label = "[algo-1] " if hosts > 1 else ""
    found = [event["message"] for page in (pages if head else reversed(pages)) for event in page["events"]]
    assert found == [label + one[:-1].decode("utf-8", "replace") for one in lines]
