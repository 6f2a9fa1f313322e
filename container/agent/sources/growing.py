"""A list of objects that can be read while it is still growing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from container.agent.sources.base import DataObject
from container.contract.errors import AgentError


class Growing:
    """A channel's objects in their order, of which the first are there at once, however many there are.

    Several threads may go through it, each from the beginning. The rest is listed in a thread without a pause: all
    hosts are to see the same objects, and a failure is to be known soon.

    Args:
        pages: Lists them, some at a time and at least one in all; the first page is listed here.
        failed: Takes the error that ended the list, unless somebody waits for the list and so meets it.

    Raises:
        AgentError: the first page cannot be listed.
    """

    def __init__(self, pages: Iterator[Sequence[DataObject]], failed: Callable[[Exception], None]) -> None:
        self._found: list[DataObject] = list(next(pages, ()))
        self._ended = False
        self._error: AgentError | None = None
        self._waiting: list[int] = []  # which objects are waited for
        self._changed = threading.Condition()
        threading.Thread(target=self._list, args=(pages, failed), name="listing", daemon=True).start()

    def __iter__(self) -> Iterator[DataObject]:
        """Yield the objects, waiting for those that are not listed yet.

        Raises:
            AgentError: the list could not be continued.
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
        except Exception as unknown:  # noqa: BLE001 - whatever it is, readers must not wait for what will not come
            error = AgentError(f"the objects could not be listed: {unknown!r}")
        with self._changed:
            self._ended, self._error = True, error
            is_met = any(number >= len(self._found) for number in self._waiting)
            self._changed.notify_all()
        if error is not None and not is_met:
            failed(error)
