"""Helpers for errors that name the offending value, what is allowed, and the nearest match."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

#: The flag of code that has ``**kwargs``.
_TAKES_ANY = 0x08
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Marks where a text was cut, for readers and for those who hide secrets: what is left of one stands beside it.
CUT = "…"
#: How much of an offending value an error shows, in characters.
_SHOWN = 300


def nearest(value: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name most like ``value``, or None when nothing is close."""
    import difflib  # a job that starts needs no guesses, only its milliseconds

    names = list(allowed)
    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def shown(value: Any) -> str:
    """Return ``repr(value)`` for an error: cut to a few lines, and never an error of its own.

    What is nested too deep, holds a number of thousands of digits, or has a ``__repr__`` that raises is shown by its
    type.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a class of the user's, whatever it raises
        return f"a value of type {type(value).__name__}"
    return cut(text, _SHOWN)


def cut(text: str, size: int) -> str:
    """Return the first characters of a text, and a mark where it was cut."""
    return text if len(text) <= size else text[:size] + CUT


def unknown(what: str, value: object, allowed: Iterable[str]) -> str:
    """Build the message for an unknown name: the value, the nearest match, and everything that is allowed.

    Args:
        what: What kind of name it is, e.g. ``"distribution"``.
        value: What the user gave.
        allowed: Every name that would have been taken, in the order in which to show them.

    Returns:
        One line, without a trailing full stop inside the list.
    """
    names = list(allowed)
    guess = nearest(value, names) if isinstance(value, str) and len(value) <= _SHOWN else None
    hint = f" Did you mean {guess!r}?" if guess is not None else ""
    return f"unknown {what} {shown(value)}.{hint} Allowed: {', '.join(repr(name) for name in names)}."


def suggesting(
    title: str, advice: Callable[[str, Any], str] = lambda name, value: ""
) -> Callable[[_Function], _Function]:
    """Decorate a function to refuse unknown keyword arguments with the nearest name.

    Args:
        title: The function's name in the message.
        advice: Returns a sentence for an unknown name and its value that has no nearest name; "" for none.

    Returns:
        The decorator. The function raises a TypeError, as Python itself would.
    """

    def decorate(function: _Function) -> _Function:
        code = function.__code__
        assert not code.co_flags & _TAKES_ANY, "it takes any keyword argument"
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name, value in kwargs.items():
                if name not in known:
                    names = [one for one in known if one != "self"]
                    more = "" if nearest(name, names) is not None else advice(name, value)
                    raise TypeError(f"{unknown(f'argument of {title}', name, names)}{more and f' {more}'}")
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate
