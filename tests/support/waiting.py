"""Waiting for a condition. There is one ceiling, for hangs alone: it says nothing of how quick anything is."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")

#: How long anything is waited for, in seconds.
CEILING_S = 120.0

#: The pause between two looks, in seconds: longer where a look takes long, and the longer the wait has lasted, so that
#: looking does not slow down what is waited for.
_SOONEST_S, _LATEST_S = 0.01, 0.25
#: So many times as long as a look takes, and this part of the time that the wait has lasted.
_PAUSE, _PART = 5, 1 / 20


def until(
    condition: Callable[[], Found],
    *,
    check: Callable[[], object] = lambda: None,
    say: Callable[[], Any] | None = None,
    between: Callable[[], object] | None = None,
) -> Found:
    """Wait until a condition holds, and return what it returned then.

    Args:
        condition: What must become true.
        check: Raises when there is no point in waiting on.
        say: What to tell when it has not come; else the variables of the condition are told.
        between: What is done between two looks instead of sleeping: a loop's turn, for what only comes by that.

    Raises:
        AssertionError: it has not come within :data:`CEILING_S`.
    """
    start = now = time.monotonic()
    while not (found := condition()):
        check()
        begun, now = now, time.monotonic()
        if now > start + CEILING_S:
            seen = _said(say) if say is not None else _variables(condition)
            raise AssertionError(f"not within {CEILING_S:g} s: {_text(condition)}\nlast: {found!r}\nseen: {seen}")
        if between is not None:
            between()
        else:
            time.sleep(min(max(_SOONEST_S, _PAUSE * (now - begun), _PART * (now - start)), _LATEST_S))
        now = time.monotonic()
    return found


def _text(condition: Callable[[], object]) -> str:
    """The lines in which a condition stands."""
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)


def _said(say: Callable[[], Any]) -> Any:
    """What is to be told; looking may fail for the reason that the condition did not come."""
    try:
        return say()
    except Exception as error:  # noqa: BLE001 - it must not hide what was waited for
        return f"nothing: {error!r}"


def _variables(condition: Callable[[], object]) -> str:
    """What a condition has taken from around it."""
    values: dict[str, object] = {}
    if isinstance(condition, functools.partial):
        values = {"arguments": condition.args, **condition.keywords}
    elif inspect.ismethod(condition):
        values = {"self": condition.__self__}
    elif inspect.isfunction(condition):
        found = inspect.getclosurevars(condition)
        shown = (int, float, str, bytes, Path, list, dict, set, tuple)
        values = {**{name: one for name, one in found.globals.items() if isinstance(one, shown)}, **found.nonlocals}
    return "; ".join(f"{name} = {_said(lambda one=one: repr(one))}"[:400] for name, one in values.items()) or "nothing"
