"""Change texts, also in JSON values: make them writable as UTF-8, and end them with a full stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def writable(value: Any) -> Any:
    """Return a JSON value whose texts can be written as UTF-8.

    Python represents bytes that are not UTF-8, for example in a file's name, as surrogate characters. JSON preserves
    these characters. Writing a text with surrogate characters raises an error. This function replaces each surrogate
    character by ``?``.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {writable(name): writable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(writable, value))
    return value


def map_texts(value: Any, function: Callable[[str], Any]) -> Any:
    """Return a copy of a JSON value in which each text is replaced by the result of a function.

    The names of members are not changed.
    """
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {name: map_texts(item, function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, function) for item in value]
    return value


def sentence(text: str) -> str:
    """Return a text with a full stop at the end. A text that ends with another mark, such as ``?``, is not changed."""
    text = text.rstrip()
    if text.endswith("..") and not text.endswith("..."):
        text = text[:-1]
    return text if text.endswith((".", "!", "?", "…", ":")) or not text else f"{text}."
