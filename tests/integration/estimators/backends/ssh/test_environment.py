"""What a host must be for an environment to be made there; the host is a shell here, in a home of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import clusters
import pytest

from estimators.backends.hosts import environment
from estimators.backends.hosts.environment import HostError, PythonEnvironment, Shell, prepare


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(["setsid", "-w", "env", "-u", "XDG_CACHE_HOME", f"HOME={tmp_path}", "sh", "-c"])


@pytest.fixture
def wanted() -> PythonEnvironment:
    return PythonEnvironment.of(["greeting==1.0"])


def test_an_environment_is_named_by_what_is_in_it(wanted: PythonEnvironment) -> None:
    assert PythonEnvironment.of(["greeting==1.0"]) == wanted
    assert PythonEnvironment.of(["greeting==1.1"]).name != wanted.name
    assert wanted.python == f"3.{sys.version_info[1]}" and wanted.processor == platform.machine()


def test_another_processor_or_python_is_refused_by_name(shell: Shell, wanted: PythonEnvironment) -> None:
    with pytest.raises(HostError, match=f"its processor is {platform.machine()}, .* are for sparc64"):
        prepare(shell, dataclasses.replace(wanted, processor="sparc64"), print)
    with pytest.raises(HostError, match=r"it has Python 3\..*, but .* are for 3\.99\. Install python3\.99 there"):
        prepare(shell, dataclasses.replace(wanted, python="3.99"), print)


def test_one_that_is_there_is_taken(shell: Shell, wanted: PythonEnvironment, tmp_path: Path) -> None:
    python = tmp_path / ".cache" / "fleetfit" / "hosts" / wanted.name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    said: list[str] = []
    prepare(shell, wanted, said.append)
    assert said == ["its environment exists"]


def test_a_full_disk_is_told_before_anything_is_sent(
    shell: Shell, wanted: PythonEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with (wheels / "greeting-1.0-py3-none-any.whl").open("wb") as file:
        file.truncate(8 << 40)
    monkeypatch.setattr(environment.wheelhouse, "fetch", lambda *arguments, **options: wheels)
    with pytest.raises(HostError, match="MiB free, but the environment needs"):
        prepare(shell, wanted, print)


def test_a_step_that_fails_leaves_nothing_half_made(
    shell: Shell, wanted: PythonEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "greeting-1.0-py3-none-any.whl").write_bytes(b"no wheel at all")
    monkeypatch.setattr(environment.wheelhouse, "fetch", lambda *arguments, **options: wheels)
    monkeypatch.setenv("UV_OFFLINE", "1")  # the host has no index
    with pytest.raises(HostError, match=r"the packages could not be installed: .*greeting"):
        prepare(shell, wanted, print)
    hosts = tmp_path / ".cache" / "fleetfit" / "hosts"
    assert [path.name for path in hosts.iterdir() if "env-" in path.name and "wheels" not in path.name] == []


def test_an_index_that_does_not_serve_is_not_asked_again_for_a_day(
    shell: Shell, wanted: PythonEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "greeting-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("greeting.py", "")
        archive.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
    monkeypatch.setattr(environment.wheelhouse, "fetch", lambda *arguments, **options: wheels)
    monkeypatch.setenv("UV_OFFLINE", "1")  # the host has no index
    said: list[str] = []
    prepare(shell, wanted, said.append)
    refused = next(text for text in said if "its package index does not serve the packages" in text)
    assert said[1:3] == ["asking its package index", refused]
    again: list[str] = []
    prepare(shell, dataclasses.replace(wanted, name=f"{wanted.name}-2"), again.append)
    assert "asking its package index" not in again
    assert any("less than a day ago, the index did not answer" in text for text in again)
    assert again[-1].startswith("its environment is ready")
    hosts = tmp_path / ".cache" / "fleetfit" / "hosts"
    installed = list(hosts.glob("env-*/lib/python3*/site-packages/greeting.py"))
    assert len(installed) == 2 and all(path.stat().st_nlink > 1 for path in installed)  # no copies


def test_whoever_has_asked_is_killed_and_nothing_goes_on(tmp_path: Path, wanted: PythonEnvironment) -> None:
    """uv takes for ever here, and says where it is."""
    hosts = tmp_path / ".cache" / "fleetfit" / "hosts"
    hosts.mkdir(parents=True)
    program = hosts / f"uv-{environment.uv.VERSION}"
    program.write_text(f"#!/bin/sh\ncd '{tmp_path}'; echo $$ > there.part; mv there.part there\nsleep 1000\n")
    program.chmod(0o755)
    cached = tmp_path / "cache" / "wheelhouse" / wanted.wheels.key
    cached.mkdir(parents=True)
    (cached / environment.wheelhouse.READY).touch()
    # As sshd does it, the command has a session of its own.
    words = ["setsid", "-w", "env", "-u", "XDG_CACHE_HOME", f"HOME={tmp_path}", "sh", "-c"]
    with subprocess.Popen(
        [sys.executable, "-m", "estimators.backends.hosts.environment"],
        stdin=subprocess.PIPE,
        env={**os.environ, "FLEETFIT_CACHE": str(tmp_path / "cache")},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"words": words, "requirements": ["greeting==1.0"]}).encode())
        process.stdin.close()
        clusters.until((tmp_path / "there").exists)
        process.kill()
    pid = int((tmp_path / "there").read_text())
    clusters.until(lambda: not Path(f"/proc/{pid}").exists())
    clusters.until(lambda: not list(hosts.glob(".env-*")))
