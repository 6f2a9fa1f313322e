"""Which ranks may be forked from an importer, by their environment, and what they are given."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from container.system import variables_read
from container.toolkit.importer import loading

MINE = {
    "HOME": "/home",
    "PATH": "/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/mpi:",
    "SM_HOSTS": "[]",
    "TF_CPP_ONE": "1",
    "PYTHONPATH": "/code:/lib",
}


def given(*seen: str, whole: bool = False, settings: tuple[tuple[str, str, bool], ...] = ()) -> loading.Given:
    plan: dict[str, Any] = {"environment": MINE, "settings": settings, "statements": ()}
    return loading.Given(plan, None if whole else set(seen), (), ())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "TF_CONFIG": "{}", "FLEETFIT_EVENTS": "6:1", "CUDA_VISIBLE_DEVICES": "-1"},
            None,
        ),
        ({"ABOUT": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_FLAGS": "x", "HOME": None}, None),
        ({"PATH": "/usr/bin:/bin"}, None),  # which nothing has looked at
        ({"LD_LIBRARY_PATH": "/mpi:/mpi:"}, None),
        ({"LD_LIBRARY_PATH": "/mpi"}, "LD_LIBRARY_PATH differs"),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "TF_CPP_MIN_LOG_LEVEL differs"),
        ({"TF_CPP_ONE": None}, "TF_CPP_ONE differs"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS differs"),
        ({"LC_ALL": "C"}, "LC_ALL differs"),
        ({"SM_HOSTS": "[1]"}, "SM_HOSTS differs"),  # it was looked at
        ({"UNSET": "1"}, "UNSET differs"),
    ],
)
def test_what_may_differ(changes: dict[str, str | None], why: str | None) -> None:
    theirs = {name: value for name, value in {**MINE, **changes}.items() if value is not None}
    assert given("SM_HOSTS", "UNSET").refusal(theirs) == why


def test_the_folder_of_the_code_may_be_another() -> None:
    assert given("PYTHONPATH").refusal({**MINE, "PYTHONPATH": "/two:/lib"}) is None


def test_what_the_script_sets_first_is_compared_as_it_will_be() -> None:
    found = given(settings=(("TF_CPP_ONE", "2", False), ("TF_CPP_TWO", "3", True)))
    assert found.refusal({**MINE, "TF_CPP_ONE": "5"}) is None
    assert found.refusal({**MINE, "TF_CPP_TWO": "5"}) == "TF_CPP_TWO differs"


def test_nothing_may_differ_where_all_was_looked_at() -> None:
    assert given(whole=True).refusal(dict(MINE)) is None
    assert given(whole=True).refusal({**MINE, "TF_CONFIG": "{}"}) == "TF_CONFIG differs"


def test_what_was_read_is_known_by_what_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("read")
    module.__file__ = str(tmp_path / "read.py")
    (tmp_path / "read.py").write_text("")
    monkeypatch.setitem(sys.modules, "read", module)
    found = given()
    assert found.staleness([]) is None
    (tmp_path / "read.py").write_text("changed")
    assert found.staleness([]) == f"{module.__file__} was changed"


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[variables_read.NotingEnviron]]:
    """The class of ``os.environ``, which has seen nothing yet."""
    monkeypatch.setattr(variables_read.NotingEnviron, "seen", set())
    monkeypatch.setattr(variables_read.NotingEnviron, "whole", False)
    monkeypatch.setenv("A", "1")
    monkeypatch.setenv("TQDM_B", "2")
    before, os.environ.__class__ = os.environ.__class__, variables_read.NotingEnviron
    yield variables_read.NotingEnviron
    os.environ.__class__ = before


def test_it_is_noted_what_is_looked_at(noted: type[variables_read.NotingEnviron]) -> None:
    assert os.environ["A"] == "1" and "C" not in os.environ and os.getenv("D") is None
    assert noted.seen == {"A", "C", "D"} and not noted.whole
    assert dict(os.environb)[b"A"] == b"1" and not noted.whole
    assert "A" in list(os.environ) and noted.whole


def test_a_module_that_looks_for_a_prefix_has_not_seen_the_rest(noted: type[variables_read.NotingEnviron]) -> None:
    names: dict[str, object] = {"__name__": "tqdm.utils", "os": os}
    exec("found = {name: value for name, value in os.environ.items() if name.startswith('TQDM_')}", names)
    assert names["found"] == {"TQDM_B": "2"}
    assert noted.seen == {"TQDM_B"} and not noted.whole
