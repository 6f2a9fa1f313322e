"""Pages of a list: the tokens that clients send back to get the next one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from estimators.service.errors import invalid


def page(found: Sequence[Any], token: str | None, most: int) -> tuple[Sequence[Any], dict[str, str]]:
    """Return one page of a list, and the answer's ``NextToken`` where there is another.

    Args:
        found: The whole list.
        token: What the client sent.
        most: How long a page is.

    Raises:
        ServiceError: the token is not one of ours.
    """
    start = _number(token)
    stop = start + most
    return found[start:stop], {"NextToken": _token(stop)} if stop < len(found) else {}


def _token(number: int) -> str:
    return base64.urlsafe_b64encode(f"fleetfit:{number}".encode()).decode()


def _number(token: str | None) -> int:
    if token is None:
        return 0
    try:
        mark, _, number = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        if mark == "fleetfit" and number.isascii() and number.isdecimal() and len(number) < 10:
            return int(number)
    except ValueError:
        pass
    raise invalid("The NextToken does not come from this endpoint.")
