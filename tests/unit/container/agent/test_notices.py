"""What a spot host says of the notices that it gets."""

from __future__ import annotations

import pytest

from container.agent.notices import Metadata, Notices

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
AT = 1_700_000_000.0  # 2023-11-14T22:13:20Z


class Service(Metadata):
    def __init__(self) -> None:
        self.documents: dict[str, str] = {}
        self.silent = False

    def read(self, path: str) -> str | None:
        if self.silent:
            raise OSError("timed out")
        return self.documents.get(path)


@pytest.fixture
def service() -> Service:
    return Service()


def test_each_notice_is_said_once(service: Service) -> None:
    notices = Notices(service)
    assert notices.look(AT) == []
    service.documents[REBALANCE] = '{"noticeTime": "2023-11-14T22:13:00Z"}'
    assert notices.look(AT) == [{"notice": "rebalance"}]
    service.documents[ACTION] = '{"action": "terminate", "time": "2023-11-14T22:15:00Z"}'
    assert notices.look(AT) == [{"notice": "interruption", "in_s": 100.0}]
    assert notices.look(AT) == []


@pytest.mark.parametrize(
    ("document", "seconds"),
    [
        ('{"action": "terminate", "time": "2023-11-14T23:15:00Z"}', 120.0),  # the host's clock is an hour off
        ('{"action": "terminate", "time": "2023-11-14T20:15:00Z"}', 120.0),
        ('{"action": "terminate"}', 120.0),
        ("terminate", 120.0),
        ('{"time": 5}', 120.0),
        ("[]", 120.0),
    ],
)
def test_when_it_goes_is_within_the_usual_notice(document: str, seconds: float, service: Service) -> None:
    service.documents[ACTION] = document
    assert Notices(service).look(AT) == [{"notice": "interruption", "in_s": seconds}]


def test_a_service_that_does_not_answer_is_said_once_and_asked_again(service: Service) -> None:
    notices = Notices(service)
    service.silent = True
    said = [notice for _ in range(6) for notice in notices.look(AT)]
    assert [notice["notice"] for notice in said] == ["silence"] and "timed out" in said[0]["text"]
    service.silent = False
    service.documents[REBALANCE] = "{}"
    assert notices.look(AT) == [{"notice": "rebalance"}]
