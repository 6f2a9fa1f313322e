"""Messages between processes: JSON objects, one a line. Every connection of a job speaks so. Pure.

What a message asks for or says is its ``op``; the rest is its two sides' business. A line is bounded, so that no peer
can fill the other's memory. JSON escapes line breaks, so a line is a message whatever its texts hold.
"""

from __future__ import annotations

# What json.dumps calls. The wrapper around each rank has only to write, and json itself imports re, which takes 3 ms.
from _json import encode_basestring_ascii, make_encoder

TYPE_CHECKING = False
if TYPE_CHECKING:  # every rank's wrapper imports this module, for which typing would take longer than all the rest
    from collections.abc import Mapping
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

#: The longest line in bytes, without its end. A failure with its traceback is some kilobytes.
LIMIT = 1 << 20
#: What messages have that ask for something or say something.
OPERATION = "op"


class MessageError(ValueError):
    """What was received is no message, or one is too long to be sent."""


def _refuse(value: object) -> None:
    raise TypeError(f"a message cannot hold a value of type {type(value).__name__}")


_json_of = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)


def encode(message: Mapping[str, Any], limit: int = LIMIT) -> bytes:
    """Return a message's line.

    Raises:
        MessageError: it is longer than ``limit`` bytes.
    """
    line = "".join(_json_of(message, 0)).encode()
    if len(line) > limit:
        raise MessageError(f"a message of {len(line)} bytes is over the limit of {limit}")
    return line + b"\n"


def decode(line: bytes, key: str | None = OPERATION) -> Message:
    """Return the message that a line is.

    Args:
        line: The line, without its end.
        key: What every message has, a text; None for nothing.

    Raises:
        MessageError: it is none.
    """
    import json

    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise MessageError(_no_message(line)) from error
    if not isinstance(message, dict):
        raise MessageError(_no_message(line))
    if key is not None and not isinstance(message.get(key), str):
        raise MessageError(f"a message has no {key!r}")
    return message


def _no_message(line: bytes) -> str:
    return f"a line of {len(line)} bytes is not a JSON object"  # which may hold a secret, so it is not shown


class Decoder:
    """Finds the messages in what arrives, in whatever pieces that comes.

    Args:
        limit: The longest line in bytes.
        key: What every message has, a text; None for nothing.
    """

    def __init__(self, limit: int = LIMIT, *, key: str | None = OPERATION) -> None:
        self._limit = limit
        self._key = key
        self._buffer = bytearray()
        self._searched = 0  # bytes at the front of the buffer that hold no line's end
        self._skipping = False  # the rest of a line that was too long

    def feed(self, data: bytes) -> None:
        """Take a piece."""
        self._buffer += data

    def take(self) -> Message | None:
        """Return the next message that is whole; None while there is none.

        Raises:
            MessageError: a line is no message, or too long; it is left out, and the next call goes on behind it.
        """
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if self._skipping:
                self._skipping = False
            elif end > self._limit:
                raise self._too_long()
            else:
                return decode(line, self._key)
        self._searched = len(self._buffer)
        if self._searched > self._limit or self._skipping:
            self._buffer.clear()
            self._searched = 0
            if not self._skipping:
                self._skipping = True
                raise self._too_long()
        return None

    def _too_long(self) -> MessageError:
        return MessageError(f"a line is over the limit of {self._limit} bytes")
