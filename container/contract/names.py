"""Helpers for errors that name the offending value, what is allowed, and the nearest match."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(value: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name most like ``value``, or None when nothing is close."""
    import difflib  # a job that starts needs no guesses, only its milliseconds

    names = list(allowed)
    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


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
    guess = nearest(str(value), names)
    hint = f" Did you mean {guess!r}?" if guess is not None else ""
    return f"unknown {what} {value!r}.{hint} Allowed: {', '.join(repr(name) for name in names)}."
