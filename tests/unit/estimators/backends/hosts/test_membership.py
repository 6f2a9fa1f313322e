"""What a source of hosts tells an elastic job: what is new, and each problem once."""

from __future__ import annotations

import pytest
from values import Told, VirtualLoop

from estimators.backends.hosts import membership


def test_only_what_is_new_is_told() -> None:
    told = Told()
    news = membership.News(told)
    assert not news.has_answered
    for _ in range(2):
        news.problem("away")
    for _ in range(2):
        news.places({"a": 1})
        news.leaving("a", 5.0)
    assert news.has_answered
    news.problem("away")
    news.places({})
    news.places({"a": 1})
    news.leaving("a", 7.0)  # it has gone and come back
    assert told.said == ["away", {"a": 1}, ("a", 5.0), "away", {}, {"a": 1}, ("a", 7.0)]


def test_who_never_answers_is_hopeless_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(membership.time, "monotonic", lambda: now[0])
    told = Told()
    news = membership.News(told, hopeless_after=10.0)
    news.problem("away")
    now[0] = 110.0
    news.problem("away")
    assert told.said == ["away", "hopeless: away"]
    news.places({})
    news.problem("away")
    assert told.said[2:] == [{}, "away"]


class Answering:
    """A list that says one answer after the other."""

    def __init__(self, answers: list[membership.Places | Exception]) -> None:
        self._answers = answers

    def places(self) -> membership.Places:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_list_is_asked_for_again_and_again_until_it_is_closed() -> None:
    loop, told = VirtualLoop(), Told()
    answers: list[membership.Places | Exception] = [{"a": None}, {"a": None}, ValueError("line 2"), {"b": 2}, {"c": 1}]
    source = membership.Polled(loop, Answering(answers), title="the list")
    source.start(told)
    loop.advance(3.5)
    assert told.said == [{"a": None}, "line 2", {"b": 2}]
    source.close()
    loop.advance(10.0)
    assert answers == [{"c": 1}]
    loop.close()


def test_a_list_that_does_not_change_is_asked_for_once() -> None:
    loop, told = VirtualLoop(), Told()
    answers: list[membership.Places | Exception] = [{"a": 1}, {"b": 1}]
    membership.Polled(loop, Answering(answers), title="the list", every=None).start(told)
    loop.advance(10.0)
    assert told.said == [{"a": 1}] and answers == [{"b": 1}]
    loop.close()
