"""Wheels for hosts, as pip finds them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.provision import wheelhouse
from estimators.provision.errors import RequirementUnavailable
from estimators.provision.packages import Installation


@pytest.mark.parametrize("build", ["", "+cpu"])
def test_the_same_version_is_taken_where_no_index_has_the_same_build(
    build: str, tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make_wheel("torch", f"2.13.0{build}")
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(found.parent))
    here = dataclasses.replace(Installation.of_venv(Path(sys.prefix)), state=tmp_path)
    asked = ("torch==2.13.0+cpu",)
    wheels = wheelhouse.Wheels(
        key="a", wanted=asked, constraints=(*asked, "horovod==0.28.1+fleetfit.9"), any_build=True
    )
    folder = wheelhouse.fetch(wheels, here)
    assert {path.name for path in folder.iterdir()} == {found.name, wheelhouse.READY}
    other = dataclasses.replace(wheels, key="b", wanted=("torch==2.14.0",), constraints=())
    with pytest.raises(RequirementUnavailable, match="has no torch"):
        wheelhouse.fetch(other, here)
    if not build:  # what a user asks for is not changed
        with pytest.raises(RequirementUnavailable, match="has no torch"):
            wheelhouse.fetch(dataclasses.replace(wheels, key="c", any_build=False), here)
