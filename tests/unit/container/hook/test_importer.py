"""Which ranks may be forked from an importer, by their environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import container


@pytest.fixture(scope="module")
def imports() -> ModuleType:
    """The module, which no package has: it is imported while an interpreter starts."""
    file = Path(container.__file__ or "").parent / "hook" / "_fleetfit_imports.py"
    spec = importlib.util.spec_from_file_location("_fleetfit_imports", file)
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
def test_what_may_differ(imports: ModuleType, changes: dict[str, str | None], why: str | None) -> None:
    surroundings = imports.Surroundings(MINE, MINE, {"SM_HOSTS", "TF_ENABLE_ONEDNN_OPTS"}, False, {})
    theirs = {name: value for name, value in {**MINE, **changes}.items() if value is not None}
    assert surroundings.refusal(theirs) == why


def test_the_folder_of_the_code_may_be_another(imports: ModuleType) -> None:
    mine = {**MINE, "PYTHONPATH": "/hook:/one/code:/lib"}
    surroundings = imports.Surroundings(mine, mine, {"PYTHONPATH"}, True, {}, "/one/code")
    assert surroundings.refusal({**mine, "PYTHONPATH": "/hook:/two/code:/lib"}, "/two/code") is None
    assert surroundings.refusal({**mine, "PYTHONPATH": "/hook:/two/code"}, "/two/code") == "PYTHONPATH differs"
    assert surroundings.refusal({**mine, "PYTHONPATH": "/hook:/two/code:/lib"}, "/two") == "PYTHONPATH differs"


def test_what_was_read_is_known_by_what_it_was(imports: ModuleType, tmp_path: Path) -> None:
    module = ModuleType("read")
    module.__file__ = str(tmp_path / "read.py")
    (tmp_path / "read.py").write_text("")
    sys.modules["read"] = module
    try:
        before = imports.read_files("")
        (tmp_path / "read.py").write_text("changed")
        after = imports.read_files("")
    finally:
        del sys.modules["read"]
    assert {name for name in before if before[name] != after.get(name)} == {module.__file__}


def test_nothing_may_differ_where_all_was_looked_at(imports: ModuleType) -> None:
    surroundings = imports.Surroundings(MINE, MINE, set(), True, {})
    assert surroundings.refusal(dict(MINE)) is None
    assert surroundings.refusal({**MINE, "TF_CONFIG": "{}"}) == "TF_CONFIG differs"


def test_it_is_noted_what_is_looked_at(imports: ModuleType) -> None:
    values = imports._Environment({b"A": b"1", b"B": b"2"})
    assert values.get(b"A") == b"1" and b"C" not in values
    assert values.seen == {b"A", b"C"} and not values.whole
    assert dict(values.items()) == {b"A": b"1", b"B": b"2"} and values.seen == {b"A", b"C"}
    assert list(values) == [b"A", b"B"] and values.whole


def test_a_module_that_looks_for_a_prefix_has_not_seen_the_rest(
    imports: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = imports._Environment({b"A": b"1", b"TQDM_B": b"2"})
    monkeypatch.setattr(os.environ, "_data", values)
    names: dict[str, object] = {"__name__": "tqdm.utils", "os": os}
    exec("found = {name: value for name, value in os.environ.items() if name.startswith('TQDM_')}", names)
    assert names["found"] == {"TQDM_B": "2"}
    assert values.seen == {b"TQDM_B"} and not values.whole
