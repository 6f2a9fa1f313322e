"""Lists of jobs: which ones a client asks for, and the tokens that it sends back to get the next page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from estimators.service.errors import invalid


def matches(request: Mapping[str, Any], name: str, state: str | None, created: float, modified: float) -> bool:
    """Return whether a list's request asks for a job.

    Args:
        request: The request, with bounds of times, part of a name, or a status.
        name: The job's name.
        state: The job's status.
        created: When the job was created, in seconds since the epoch.
        modified: When the job was last changed, in seconds since the epoch.
    """
    for what, when in (("Creation", created), ("LastModified", modified)):
        if not request.get(f"{what}TimeAfter", when) <= when <= request.get(f"{what}TimeBefore", when):
            return False
    return request.get("NameContains", "") in name and request.get("StatusEquals", state) == state


def page(found: Sequence[Any], token: str | None, most: int) -> tuple[Sequence[Any], dict[str, str]]:
    """Return one page of a list, and the answer's ``NextToken`` if another page follows.

    Args:
        found: The whole list.
        token: The token from the client, or None for the first page.
        most: The most items of a page.

    Raises:
        ServiceError: the token is not from this endpoint.
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
