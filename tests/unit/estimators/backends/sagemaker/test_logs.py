"""CloudWatch's logs: every line once, in order, also after a pause, with tokens that died, and hosts started again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from estimators.backends.sagemaker.logs import LogFollower


class CloudWatch:
    """A log group as CloudWatch has it: pages, tokens that name a place, an inclusive start time."""

    def __init__(self, page: int = 3) -> None:
        self.streams: dict[str, list[tuple[int, str]]] = {}
        self.page = page
        self.epoch = 0  # tokens of an earlier one are refused
        self.asked = 0
        self.fails_at = 0  # which question is not answered

    def put(self, stream: str, *lines: tuple[int, str]) -> None:
        self.streams.setdefault(stream, []).extend(lines)

    def describe_log_streams(self, *, logGroupName: str, logStreamNamePrefix: str, **_: Any) -> dict[str, Any]:
        self._ask("DescribeLogStreams")
        if not self.streams:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no group"}}, "x")
        names = sorted(name for name in self.streams if name.startswith(logStreamNamePrefix))
        return {"logStreams": [{"logStreamName": name} for name in names]}

    def get_log_events(
        self, *, logStreamName: str, nextToken: str | None = None, startTime: int = 0, **_: Any
    ) -> dict[str, Any]:
        self._ask("GetLogEvents")
        lines = self.streams[logStreamName]
        start = next((index for index, line in enumerate(lines) if line[0] >= startTime), len(lines))
        if nextToken is not None:
            epoch, _, place = nextToken.partition("/")
            if int(epoch) != self.epoch:
                raise ClientError({"Error": {"Code": "InvalidParameterException", "Message": "old token"}}, "x")
            start = int(place)
        found = lines[start : start + self.page]
        return {
            "events": [{"timestamp": time_ms, "message": text} for time_ms, text in found],
            "nextForwardToken": f"{self.epoch}/{start + len(found)}",
        }

    def _ask(self, operation: str) -> None:
        self.asked += 1
        if self.asked == self.fails_at:
            raise EndpointConnectionError(endpoint_url="https://logs")


def texts(lines: list[Any]) -> list[str]:
    return [line.data.decode() for line in lines]


def all_of(follower: LogFollower) -> list[str]:
    """Read until there is no more."""
    got = texts(follower.read())
    while follower.more:
        got += texts(follower.read())
    return got


def test_every_line_comes_once_whatever_happens_in_between() -> None:
    logs = CloudWatch()
    follower = LogFollower(logs, "job", 2)
    assert follower.read() == []  # not even the group is there
    logs.put("job/algo-1-1", (10, "a"), (10, "b"), (11, "c"), (12, "d"))
    logs.put("job-2/algo-1-1", (10, "another job's"))
    logs.put("job/algo-1-1/extra", (10, "not a host's"))
    assert texts(follower.read()) == ["a\n", "b\n", "c\n", "d\n"]
    assert not follower.complete
    assert follower.read() == []
    logs.put("job/algo-1-1", (12, "e"), (12, "f"))
    logs.put("job/algo-2-1", (11, "x"), (12, "y"))
    read = follower.read()
    assert texts(read) == ["x\n", "e\n", "f\n", "y\n"]
    assert {line.host for line in read} == {"algo-1", "algo-2"} and follower.complete
    logs.epoch += 1  # a day later: the tokens have died
    logs.put("job/algo-1-1", (12, "g"), (13, "h"))
    assert texts(follower.read()) == ["g\n", "h\n"]
    cursor = json.loads(json.dumps(follower.cursor))  # another supervisor goes on
    logs.put("job/algo-1-1", (13, "i"), (14, "j"))
    assert texts(LogFollower(logs, "job", 2, cursor).read()) == ["i\n", "j\n"]


@pytest.mark.parametrize("count", [4, 7, 40])
def test_more_lines_of_one_millisecond_than_a_page_has_come_once(count: int) -> None:
    logs = CloudWatch()
    logs.put("job/algo-1-1", *((10, str(n)) for n in range(count)))
    follower = LogFollower(logs, "job", 1)
    got = all_of(follower)
    logs.put("job/algo-1-1", (10, "same"), (11, "next"))
    later = LogFollower(logs, "job", 1, json.loads(json.dumps(follower.cursor)))
    got += all_of(later)
    assert got == [f"{n}\n" for n in range(count)] + ["same\n", "next\n"]


def test_a_lost_connection_loses_nothing() -> None:
    logs = CloudWatch()
    logs.put("job/algo-1-1", *((n, str(n)) for n in range(8)))
    logs.put("job/algo-2-1", (1, "x"))
    follower = LogFollower(logs, "job", 2)
    for fails_at in range(1, 8):
        logs.asked, logs.fails_at = 0, fails_at
        with pytest.raises(EndpointConnectionError):
            follower.read()
    logs.fails_at = 0
    assert sorted(texts(follower.read())) == sorted([*(f"{n}\n" for n in range(8)), "x\n"])


def test_a_host_that_was_started_again_has_another_attempt() -> None:
    logs = CloudWatch()
    logs.put("job/algo-1-200", (30, "second"))
    logs.put("job/algo-1-100", (10, "first"))
    first, second = LogFollower(logs, "job", 1).read()
    assert (first.attempt, first.time_ns, first.data) == (0, 10_000_000, b"first\n")
    assert (second.attempt, second.time_ns, second.data) == (1, 30_000_000, b"second\n")


def test_a_very_long_log_comes_in_portions() -> None:
    logs = CloudWatch(page=5)
    logs.put("job/algo-1-1", *((n, str(n)) for n in range(120)))
    follower = LogFollower(logs, "job", 1)
    first = texts(follower.read())
    assert follower.more and first + all_of(follower) == [f"{n}\n" for n in range(120)]
