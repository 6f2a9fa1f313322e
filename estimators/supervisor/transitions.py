"""State machines as tables of named states and events. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
H = TypeVar("H", bound=enum.Enum)


class IllegalTransition(AssertionError):
    """An event cannot happen in a state: a fault of fleetfit."""


class Table(dict[tuple[S, H], S], Generic[S, H]):
    """The transitions of a state machine. A transition that is missing cannot happen.

    Args:
        what: The thing that has the states, for messages: "a job".
        transitions: (state, event) -> the next state.
    """

    def __init__(self, what: str, transitions: Mapping[tuple[S, H], S]) -> None:
        super().__init__(transitions)
        self._what = what

    def following(self, state: S, happening: H) -> S:
        """Return the next state.

        Raises:
            IllegalTransition: the event cannot happen in the state.
        """
        if (state, happening) not in self:
            raise IllegalTransition(f"{happening.name} cannot happen to {self._what} that is {state.name}.")
        return self[state, happening]
