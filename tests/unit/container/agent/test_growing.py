"""Objects that are read while the rest of them are still being listed."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from container.agent.s3 import listing
from container.agent.sources.base import DataObject
from container.agent.sources.growing import Growing
from container.contract.errors import AgentError


def objects(*numbers: int) -> list[DataObject]:
    return [DataObject(f"s3://b/{number}", number, None) for number in numbers]


class Pages:
    """A server whose pages come when the test says so; None is the end."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Sequence[DataObject] | Exception | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Sequence[DataObject]]:
        while (page := self.queue.get()) is not None:
            if isinstance(page, Exception):
                raise page
            yield page


def test_the_first_are_there_before_the_rest() -> None:
    pages = Pages()
    pages.queue.put(objects(0, 1))
    growing = Growing(iter(pages), pytest.fail)
    early = iter(growing)
    assert [next(early), next(early)] == objects(0, 1)
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(list, growing) for _ in range(3)]
        for page in (objects(2), objects(), objects(3, 4), None):
            pages.queue.put(page)
    assert [reader.result() for reader in readers] == [objects(0, 1, 2, 3, 4)] * 3
    assert list(early) == objects(2, 3, 4)


def test_the_first_page_must_be_there() -> None:
    pages = Pages()
    pages.queue.put(AgentError("there is none"))
    with pytest.raises(AgentError, match="there is none"):
        Growing(iter(pages), pytest.fail)


@pytest.mark.parametrize("error", [AgentError("line 7: no such object"), ZeroDivisionError("line 7")])
def test_a_failure_is_told_at_once_and_to_everybody(error: Exception) -> None:
    pages, failures = Pages(), queue.SimpleQueue[Exception]()
    pages.queue.put(objects(0))
    growing = Growing(iter(pages), failures.put)
    pages.queue.put(error)
    told = failures.get(timeout=60)
    assert isinstance(told, AgentError) and "line 7" in str(told)
    for _ in range(2):
        reader = iter(growing)
        assert next(reader) == objects(0)[0]
        with pytest.raises(AgentError, match="line 7"):
            next(reader)


def test_a_failure_that_somebody_meets_is_theirs_to_tell() -> None:
    """A reader says it beside its FIFO first; the agent must not end before that."""
    pages, failures = Pages(), queue.SimpleQueue[Exception]()
    pages.queue.put(objects(0))
    growing = Growing(iter(pages), failures.put)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(list, growing)
        while not growing._waiting:  # it comes to the end of what there is
            pass
        pages.queue.put(AgentError("line 7"))
    assert isinstance(reader.exception(), AgentError) and str(reader.exception()) == "line 7"
    assert failures.empty()


def test_which_buckets_are_listed_in_order() -> None:
    assert listing.is_sorted("s3://bucket/train/")
    assert not listing.is_sorted("s3://bucket--use1-az4--x-s3/train/")
