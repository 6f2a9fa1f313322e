"""A host's Python is looked at before anything is sent there."""

from __future__ import annotations

import sys

import pytest

from estimators.backends.hosts import joining


@pytest.mark.parametrize("python", [None, sys.executable])
def test_another_python_than_the_callers_is_refused_before_anything_is_sent_there(python: str | None) -> None:
    with pytest.raises(OSError, match=r"its Python is 3\.\d+, but fit\(\) runs on 2\.7\. Name another interpreter"):
        joining.start_agent({"python": python, "version": "2.7"}, b"", {})
