"""Define state machines as tables of states and events."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
H = TypeVar("H", bound=enum.Enum)


class IllegalTransition(AssertionError):
    """Raised if an event cannot happen in a state. Such an event is caused by a bug in fleetfit."""


class Table(dict[tuple[S, H], S], Generic[S, H]):
    """The transitions of a state machine. If the table has no entry for a state and an event, the event cannot happen
    in the state.

    Args:
        what: The kind of object that has these states, for error messages, such as "a job".
        transitions: The next state for each pair of a state and an event.
    """

    def __init__(self, what: str, transitions: Mapping[tuple[S, H], S]) -> None:
        super().__init__(transitions)
        self._what = what

    def following(self, state: S, happening: H) -> S:
        """Return the state that follows an event.

        Raises:
            IllegalTransition: the event cannot happen in the state.
        """
        if (state, happening) not in self:
            raise IllegalTransition(f"{happening.name} cannot happen to {self._what} that is {state.name}.")
        return self[state, happening]
