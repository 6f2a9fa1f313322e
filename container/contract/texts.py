"""Texts for people: such as can be written, and end as sentences do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def writable(value: Any) -> Any:
    """Return a JSON value whose texts can be written as UTF-8.

    Bytes that are no UTF-8, of a file's name for example, come as half characters in Python's texts, and through JSON
    as well; whatever is written with them raises. They become ``?``.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {writable(name): writable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(writable, value))
    return value


def sentence(text: str) -> str:
    """Return a text that ends in one full stop, or as it is where it ends otherwise than words do."""
    text = text.rstrip()
    if text.endswith("..") and not text.endswith("..."):
        text = text[:-1]
    return text if text.endswith((".", "!", "?", "…", ":")) or not text else f"{text}."
