"""Filter lists of jobs, and divide the lists into pages. With a token, a client requests the next page."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from estimators.service.errors import ServiceError, invalid

Item = TypeVar("Item")
#: The sort key of an item in a list: a tuple of texts and numbers.
Key = tuple[Any, ...]


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


def page(
    found: Iterable[Item], key: Callable[[Item], Key], request: Mapping[str, Any], default: int = 10
) -> tuple[list[Item], dict[str, str]]:
    """Sort a list, and return one page of it.

    The token of a page contains the key of the page's last item, not a number of items. The pages of a client therefore
    omit no item if other items leave the list in the meantime, for example because the client stops the listed jobs.

    Args:
        found: All items of the list, in any order.
        key: A function that returns an item's sort key: a tuple of texts and numbers, different for each item.
        request: The list request, which may contain the token of a page, the maximum number of items on the page, and
            the order.
        default: The maximum number of items on a page if the request has none.

    Returns:
        The items of the page, and a dict with the response's ``NextToken``. The dict is empty if there is no next page.

    Raises:
        ServiceError: the token was not created by this endpoint for a list in this order.
    """
    descending, token = request.get("SortOrder") == "Descending", request.get("NextToken")
    most = int(request.get("MaxResults") or default)
    left = sorted(found, key=key, reverse=descending)
    if token is not None:
        last = _read(token)
        try:
            left = [item for item in left if (key(item) < last if descending else key(item) > last)]
        except TypeError:
            raise _foreign() from None
    shown = left[:most]
    return shown, {"NextToken": _token(key(shown[-1]))} if len(left) > most else {}


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode(f"fleetfit:{json.dumps(key)}".encode()).decode()


def _read(token: str) -> Key:
    try:
        mark, _, text = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        key = json.loads(text)
        if mark == "fleetfit" and isinstance(key, list):
            return tuple(key)
    except (ValueError, RecursionError):
        pass
    raise _foreign()


def _foreign() -> ServiceError:
    return invalid("The NextToken does not come from this endpoint.")
