"""Filter lists of jobs, and divide the lists into pages. With a token, a client requests the next page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from estimators.service.errors import invalid


def matches(request: Mapping[str, Any], name: str, state: str | None, created: float, modified: float) -> bool:
    """Return whether a job matches the filters of a list request.

    Args:
        request: The list request, which may contain limits for the two times, a part of the name, and a status.
        name: The job's name.
        state: The job's status.
        created: The time at which the job was created, in seconds since the epoch.
        modified: The time of the job's last change, in seconds since the epoch.
    """
    for what, when in (("Creation", created), ("LastModified", modified)):
        if not request.get(f"{what}TimeAfter", when) <= when <= request.get(f"{what}TimeBefore", when):
            return False
    return request.get("NameContains", "") in name and request.get("StatusEquals", state) == state


def page(found: Sequence[Any], token: str | None, most: int) -> tuple[Sequence[Any], dict[str, str]]:
    """Return one page of a list.

    Args:
        found: The whole list.
        token: The token from the client. None for the first page.
        most: The maximum number of items on a page.

    Returns:
        The items of the page, and a dict with the response's ``NextToken``. The dict is empty if there is no next page.

    Raises:
        ServiceError: the token was not created by this endpoint.
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
