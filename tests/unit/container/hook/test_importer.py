"""Which ranks may be forked from an importer, by their environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import container


@pytest.fixture(scope="module")
def importer() -> ModuleType:
    """The module, which no package has: it is imported while an interpreter starts."""
    file = Path(container.__file__ or "").parent / "hook" / "_fleetfit_importer.py"
    spec = importlib.util.spec_from_file_location("_fleetfit_importer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MINE = {
    "HOME": "/home",
    "PATH": "/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/mpi:",
    "SM_HOSTS": "[]",
    "CUDA_VISIBLE_DEVICES": "0",
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "TF_CONFIG": "{}", "FLEETFIT_EVENTS": "6:1", "CUDA_VISIBLE_DEVICES": "-1"},
            None,
        ),
        ({"PATH": "/bin:/bin:/usr/bin:/bin"}, None),
        ({"PATH": "/usr/bin:/bin"}, "PATH differs"),
        ({"LD_LIBRARY_PATH": "/mpi:/mpi:"}, None),
        ({"LD_LIBRARY_PATH": "/mpi"}, "LD_LIBRARY_PATH differs"),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "TF_CPP_MIN_LOG_LEVEL differs"),
        ({"HOME": None}, "HOME differs"),
        ({"SM_HOSTS": "[1]"}, "SM_HOSTS differs"),  # it was looked at
    ],
)
def test_what_may_differ(importer: ModuleType, changes: dict[str, str | None], why: str | None) -> None:
    surroundings = importer.Surroundings(MINE, MINE, {"SM_HOSTS", "TF_ENABLE_ONEDNN_OPTS"}, False, {})
    theirs = {name: value for name, value in {**MINE, **changes}.items() if value is not None}
    assert surroundings.refusal(theirs) == why


def test_nothing_may_differ_where_all_was_looked_at(importer: ModuleType) -> None:
    surroundings = importer.Surroundings(MINE, MINE, set(), True, {})
    assert surroundings.refusal(dict(MINE)) is None
    assert surroundings.refusal({**MINE, "TF_CONFIG": "{}"}) == "TF_CONFIG differs"


def test_it_is_noted_what_is_looked_at(importer: ModuleType) -> None:
    values = importer._Environment({b"A": b"1", b"B": b"2"})
    assert values.get(b"A") == b"1" and b"C" not in values
    assert values.seen == {b"A", b"C"} and not values.whole
    assert dict(values.items()) == {b"A": b"1", b"B": b"2"} and values.seen == {b"A", b"C"}
    assert list(values) == [b"A", b"B"] and values.whole
