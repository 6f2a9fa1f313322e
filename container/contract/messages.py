"""Encode and decode the messages that the processes of a job send to each other: JSON objects, one on each line.

A message's field ``op`` names the message's operation. The sender and the receiver define the other fields. The size of
a line is limited, so that no sender can fill the receiver's memory. JSON escapes line breaks. Therefore a line is
always one message.
"""

from __future__ import annotations

# json.dumps itself is built on this module. The wrapper around each rank only encodes messages. Importing json would
# also import re, which takes 3 ms.
from _json import encode_basestring_ascii, make_encoder

TYPE_CHECKING = False
if TYPE_CHECKING:  # every rank's wrapper imports this module; importing typing would take longer than all the rest
    from collections.abc import Mapping
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

#: Maximum size of a line in bytes, without its line break. A failure with its traceback has some kilobytes.
LIMIT = 1 << 20
#: The field that names a message's operation.
OPERATION = "op"


class MessageError(ValueError):
    """Raised if received data is not a message, or if a message is too long to send."""


def _refuse(value: object) -> None:
    raise TypeError(f"a message cannot hold a value of type {type(value).__name__}")


_json_of = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)


def encode(message: Mapping[str, Any], limit: int = LIMIT) -> bytes:
    """Encode a message as a line.

    Raises:
        MessageError: the message is longer than ``limit`` bytes.
    """
    line = "".join(_json_of(message, 0)).encode()
    if len(line) > limit:
        raise MessageError(f"a message of {len(line)} bytes is over the limit of {limit}")
    return line + b"\n"


def decode(line: bytes, key: str | None = OPERATION) -> Message:
    """Decode the message in a line.

    Args:
        line: The line, without its line break.
        key: The name of the field that every message must have, with a text as its value. If None, no field is
            required.

    Raises:
        MessageError: the line is not a message, or lacks the field.
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
    return f"a line of {len(line)} bytes is not a JSON object"  # the line is not shown: it may contain a secret


class Decoder:
    """A decoder that finds the messages in received data. The data may be received in blocks of any size.

    Args:
        limit: Maximum size of a line in bytes.
        key: The name of the field that every message must have, with a text as its value. If None, no field is
            required.
    """

    def __init__(self, limit: int = LIMIT, *, key: str | None = OPERATION) -> None:
        self._limit = limit
        self._key = key
        self._buffer = bytearray()
        self._searched = 0  # number of bytes at the front of the buffer that contain no line break
        self._skipping = False  # whether to skip the rest of a line that was too long

    def feed(self, data: bytes) -> None:
        """Add a block of received data."""
        self._buffer += data

    def take(self) -> Message | None:
        """Return the next complete message. Return None if no message is complete yet.

        Raises:
            MessageError: a line is not a message, or is too long. The next call continues after this line.
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

    def take_bytes(self, size: int) -> bytes | None:
        """Return the ``size`` bytes that follow the last returned message and are not a message themselves.

        Return None if fewer bytes have been received so far.
        """
        if len(self._buffer) < size:
            return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _too_long(self) -> MessageError:
        return MessageError(f"a line is over the limit of {self._limit} bytes")
