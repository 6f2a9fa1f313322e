"""Build error messages that contain the invalid value, the allowed values, and the allowed value that is most
similar.
"""

from __future__ import annotations

import functools
import os
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from container.contract.errors import ArgumentNameError

#: Flag of a code object whose function has ``**kwargs``.
_TAKES_ANY = 0x08
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Public = TypeVar("_Public")

#: Matches Python's message for a call that lacks arguments.
_MISSING = re.compile(r"missing \d+ required .*argument(s?): (.+)")
#: The mark that replaces the removed part of a text. The mark shows readers that the text was cut. The code that hides
#: secrets also hides parts of secrets before and after the mark.
CUT = "…"
#: Maximum number of characters of an invalid value that an error message shows.
_SHOWN = 300


def nearest(value: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is most similar to ``value``. Return None if no allowed name is similar."""
    # imported here because a job that starts without an error does not need it, and importing takes time
    import difflib

    names = list(allowed)
    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """Return the file name that is most similar to ``name``. The names' endings, such as ``.py``, do not count."""
    stems = {os.path.splitext(one)[0]: one for one in names}
    stem = nearest(os.path.splitext(name)[0], stems)
    return stems[stem] if stem is not None else None


def shown(value: Any) -> str:
    """Return ``repr(value)`` for an error message, cut to a few lines. This function never raises an error.

    If ``repr(value)`` raises an error, return a text with the type instead. This happens if the value is nested too
    deeply, contains a number of thousands of digits, or has a ``__repr__`` that raises an error.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the class is the user's: its repr() may raise anything
        return f"a value of type {type(value).__name__}"
    return cut(text, _SHOWN)


def is_text(text: str, errors: str = "strict") -> bool:
    """Return whether a text can be encoded as UTF-8.

    A lone surrogate cannot be encoded, for example one half of an emoji that was cut in two. Python also represents
    the bytes of a file's name that are not UTF-8 by lone surrogates. With ``errors="surrogateescape"``, a text with
    the surrogates of such bytes can be encoded.
    """
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def cut(text: str, size: int) -> str:
    """Return a text unchanged if it has at most ``size`` characters. Otherwise return its first ``size`` characters and
    a mark.
    """
    return text if len(text) <= size else text[:size] + CUT


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return names as text, separated by commas. After ``most`` names, state only how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def unknown(what: str, value: object, allowed: Iterable[str]) -> str:
    """Build the error message for an unknown name. The message contains the name, the most similar allowed name, and
    all allowed names.

    Args:
        what: The kind of name, such as ``"distribution"``.
        value: The unknown name.
        allowed: All allowed names, in the order in which to show them.

    Returns:
        The message, as one line.
    """
    names = list(allowed)
    guess = nearest(value, names) if isinstance(value, str) and len(value) <= _SHOWN else None
    hint = f" Did you mean {guess!r}?" if guess is not None else ""
    return f"unknown {what} {shown(value)}.{hint} Allowed: {', '.join(map(repr, names)) or 'none'}."


def suggesting(advice: Callable[[str, Any], str] = lambda name, value: "") -> Callable[[_Function], _Function]:
    """Return a decorator that improves a function's errors for unknown, missing or too many arguments. For an unknown
    keyword argument, the message suggests the most similar name.

    Args:
        advice: Called with an unknown name and its value if no allowed name is similar. Returns a sentence to append to
            the message, or "".

    Returns:
        The decorator. If the arguments are wrong, the decorated function raises an ArgumentNameError, which is also a
        TypeError. A function that takes any keyword argument is returned unchanged.
    """

    def decorate(function: _Function) -> _Function:
        code = function.__code__
        if code.co_flags & _TAKES_ANY:
            return function
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name, value in kwargs.items():
                if name not in known:
                    title = _title(function, args)
                    names = [one for one in known if one not in ("self", "cls")]
                    more = "" if nearest(name, names) is not None else advice(name, value)
                    raise ArgumentNameError(f"{unknown(f'argument of {title}', name, names)}{more and f' {more}'}")
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # the function itself has raised the error
                raise ArgumentNameError(_of_call(function, args, str(error))) from None

        return checked  # type: ignore[return-value]

    return decorate


def _of_call(function: Callable[..., Any], args: Sequence[Any], text: str) -> str:
    """Return a message for a call whose arguments do not fit the function.

    Args:
        function: The function.
        args: The arguments without names, including the object of a method.
        text: Python's error message for the call.
    """
    title = _title(function, args).removesuffix("()")
    code = function.__code__
    names = [one for one in code.co_varnames[: code.co_argcount] if one not in ("self", "cls")]
    if len(args) > code.co_argcount and names:
        return f"{title}() takes at most {len(names)} arguments without names: {', '.join(names)}."
    if len(args) > code.co_argcount:
        return f"{title}() takes only arguments with names, such as {title}({code.co_varnames[code.co_argcount]}=…)."
    if missing := _MISSING.search(text):
        return f"{title}() needs the argument{missing[1]} {missing[2]}."
    return text.replace(f"{function.__qualname__}()", f"{title}()")


def _title(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """Return a function's name for a message, such as ``fit()``. For ``__init__``, return the name of the class."""
    return type(args[0]).__name__ if function.__name__ == "__init__" else f"{function.__name__}()"


def suggests_arguments(public: _Public) -> _Public:
    """Improve the errors that a public function, or a class and its public methods, raise for wrong arguments.

    This is a decorator. See :func:`suggesting`.
    """
    if not isinstance(public, type):
        return suggesting()(public)  # type: ignore[type-var]
    for name, value in list(vars(public).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, classmethod):
            setattr(public, name, classmethod(suggesting()(value.__func__)))
        elif isinstance(value, types.FunctionType) and not hasattr(value, "__wrapped__"):
            setattr(public, name, suggesting()(value))
    return public
