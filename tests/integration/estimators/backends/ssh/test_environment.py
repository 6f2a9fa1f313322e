"""What a host must be for an environment to be made there; the host is a shell here, in a home of its own."""

from __future__ import annotations

import json
import os
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


def test_a_host_without_an_index_gets_the_wheels(
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
    assert said[1].startswith("installing 1 packages from its package index")
    assert said[2].startswith("its package index does not serve the packages") and said[-1].startswith(
        "its environment"
    )
    hosts = tmp_path / ".cache" / "fleetfit" / "hosts"
    [installed] = hosts.glob("env-*/lib/python3*/site-packages/greeting.py")
    assert installed.stat().st_nlink > 1  # no copy


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
        process.stdin.write(json.dumps({"words": words, "environment": {"requirements": ["greeting==1.0"]}}).encode())
        process.stdin.close()
        clusters.until((tmp_path / "there").exists)
        process.kill()
    pid = int((tmp_path / "there").read_text())
    clusters.until(lambda: not Path(f"/proc/{pid}").exists())
    clusters.until(lambda: not list(hosts.glob(".env-*")))
