"""Provide a list of objects that can be iterated over while a thread is still adding objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from container.agent.sources.base import DataObject
from container.contract.errors import AgentError


class Growing:
    """An iterable over a channel's objects, in order. The first objects are available before all objects are listed.

    Several threads may iterate, each from the beginning. A thread lists the remaining objects without waiting for the
    iterations. Therefore all hosts list the objects at about the same time and get the same objects, and an error is
    reported early.

    Args:
        pages: Yields the objects in pages. The first page is listed at once.
        failed: Called with the error if a later page cannot be listed. ``failed`` is not called if an iteration is
            waiting for an unlisted object. In this case, the iteration raises the error.

    Raises:
        AgentError: the first page cannot be listed.
    """

    def __init__(self, pages: Iterator[Sequence[DataObject]], failed: Callable[[Exception], None]) -> None:
        self._found: list[DataObject] = list(next(pages, ()))
        self._ended = False
        self._error: AgentError | None = None
        self._waiting: list[int] = []  # numbers of the objects that iterations wait for
        self._changed = threading.Condition()
        threading.Thread(target=self._list, args=(pages, failed), name="listing", daemon=True).start()

    def __iter__(self) -> Iterator[DataObject]:
        """Yield the objects. Wait for objects that are not listed yet.

        Raises:
            AgentError: the remaining objects cannot be listed.
        """
        number = 0
        while (item := self._at(number)) is not None:
            yield item
            number += 1

    def _at(self, number: int) -> DataObject | None:
        with self._changed:
            self._waiting.append(number)
            self._changed.wait_for(lambda: number < len(self._found) or self._ended)
            self._waiting.remove(number)
            if number < len(self._found):
                return self._found[number]
            if self._error is not None:
                raise AgentError(str(self._error)) from self._error
            return None

    def _list(self, pages: Iterator[Sequence[DataObject]], failed: Callable[[Exception], None]) -> None:
        error: AgentError | None = None
        try:
            for page in pages:
                with self._changed:
                    self._found += page
                    self._changed.notify_all()
        except AgentError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - iterations must not wait for objects that will never be listed
            error = AgentError(f"the objects could not be listed: {unknown!r}")
        with self._changed:
            self._ended, self._error = True, error
            is_met = any(number >= len(self._found) for number in self._waiting)
            self._changed.notify_all()
        if error is not None and not is_met:
            failed(error)
