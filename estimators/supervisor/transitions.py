"""Named states, and a table of what may happen in each. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
H = TypeVar("H", bound=enum.Enum)


class IllegalTransition(AssertionError):
    """Something happened that cannot happen in that state: a fault of fleetfit."""


class Table(dict[tuple[S, H], S], Generic[S, H]):
    """What follows what. What is not in it cannot happen.

    Args:
        what: What is in such a state, for messages: "a job".
        transitions: (state, happening) -> the state that follows.
    """

    def __init__(self, what: str, transitions: Mapping[tuple[S, H], S]) -> None:
        super().__init__(transitions)
        self._what = what

    def following(self, state: S, happening: H) -> S:
        """Return the state that follows.

        Raises:
            IllegalTransition: it cannot happen there.
        """
        if (state, happening) not in self:
            raise IllegalTransition(f"{happening.name} cannot happen to {self._what} that is {state.name}.")
        return self[state, happening]
