"""How lists are divided into pages."""

from __future__ import annotations

import pytest

from estimators.service.errors import ServiceError
from estimators.service.paging import page


@pytest.mark.parametrize("descending", [False, True])
def test_the_next_page_omits_nothing_when_listed_items_have_left_the_list(descending: bool) -> None:
    listed = [(when, name) for when in (1.5, 2.25) for name in ("a", "b", "c")]
    seen: list[tuple[float, str]] = []
    token = None
    while len(seen) < 6:
        left = [item for item in listed if item not in seen]  # a client stops each job that it was shown
        order = "Descending" if descending else "Ascending"
        shown, more = page(left, lambda item: item, {"NextToken": token, "MaxResults": 2, "SortOrder": order})
        seen += shown
        token = more.get("NextToken")
    assert seen == sorted(listed, reverse=descending)
    assert token is None


@pytest.mark.parametrize("token", ["", "é", "x", "ZmxlZXRmaXQ6WzFd", "ZmxlZXRmaXQ6MQ=="])
def test_a_token_of_another_list_is_refused(token: str) -> None:
    with pytest.raises(ServiceError, match="NextToken"):
        page(["a", "b"], lambda item: (item,), {"NextToken": token, "MaxResults": 1})
