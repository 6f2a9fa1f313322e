"""What a host must be for an environment to be made there; the host's answers are values."""

from __future__ import annotations

import dataclasses
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators.backends.hosts import environment
from estimators.backends.hosts.environment import HostError, PythonEnvironment, Shell, prepare

HERE = [f"processor {platform.machine()}", f"python 3.{sys.version_info[1]} /usr/bin/python3", "free 1024"]


class ValueShell(Shell):
    """A host that answers the first question only."""

    def __init__(self, *lines: str) -> None:
        super().__init__([])
        self.lines = [*HERE, *lines]

    def run(self, script: str, *arguments: str, **more: Any) -> tuple[int, list[str]]:
        return 0, self.lines


@pytest.fixture
def wanted() -> PythonEnvironment:
    return PythonEnvironment.of(["greeting==1.0"])


def test_an_environment_is_named_by_what_is_in_it(wanted: PythonEnvironment) -> None:
    assert PythonEnvironment.of(["greeting==1.0"]) == wanted
    assert PythonEnvironment.of(["greeting==1.1"]).name != wanted.name
    assert wanted.python == f"3.{sys.version_info[1]}" and wanted.processor == platform.machine()


def test_another_processor_or_python_is_refused_by_name(wanted: PythonEnvironment) -> None:
    with pytest.raises(HostError, match=f"the host's processor is {platform.machine()}, .* are for sparc64"):
        prepare(ValueShell(), dataclasses.replace(wanted, processor="sparc64"), print)
    with pytest.raises(HostError, match=r"it has Python 3\..*, but .* are for 3\.99\. Install python3\.99 there"):
        prepare(ValueShell(), dataclasses.replace(wanted, python="3.99"), print)


def test_one_that_is_there_is_taken(wanted: PythonEnvironment) -> None:
    said: list[str] = []
    prepare(ValueShell("ready"), wanted, said.append)
    assert said == ["its environment exists"]


def test_a_full_disk_is_told_before_anything_is_sent(
    wanted: PythonEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "greeting-1.0-py3-none-any.whl").open("wb") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(environment.wheelhouse, "fetch", lambda *arguments, **options: tmp_path)
    with pytest.raises(HostError, match="MiB free, but the environment needs"):
        prepare(ValueShell(), wanted, print)
