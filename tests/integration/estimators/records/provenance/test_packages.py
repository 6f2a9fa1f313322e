"""The package listing of another environment."""

import subprocess
import venv
from pathlib import Path

import pytest

from estimators.records.provenance import packages


def make_environment(folder: Path) -> Path:
    """Make a venv with pip, and what pip installs into it without a network."""
    venv.create(folder / "env", with_pip=True)
    for name, backend in (("Plain.Name", ""), ("editable_one", "-e")):
        project = folder / name
        project.mkdir()
        # A backend of a few lines: building with setuptools would download it.
        (project / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'
        )
        (project / "b.py").write_text(BACKEND.format(name=name, stem=name.replace(".", "_").lower()))
        arguments = [backend] if backend else []
        python = str(folder / "env" / "bin" / "python")
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", *arguments, str(project)],
            check=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return folder / "env"


BACKEND = """
import zipfile
STEM = "{stem}-1.2"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = STEM + "-py3-none-any.whl"
    info = STEM + ".dist-info/"
    with zipfile.ZipFile(folder + "/" + name, "w") as file:
        file.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.2\\n\\nName: other\\n")
        file.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(info + "RECORD", "")
    return name
build_editable = build_wheel
"""


def test_another_environment_is_listed(tmp_path: Path) -> None:
    python = str(make_environment(tmp_path) / "bin" / "python")
    values = packages.listing(python)
    assert values["python"] == python
    assert [line for line in values["freeze"] if not line.startswith("setuptools==")] == [
        f"-e {tmp_path / 'editable_one'}", f"Plain.Name @ {(tmp_path / 'Plain.Name').as_uri()}"
    ]  # fmt: skip
    with pytest.raises(OSError, match="no-python"):
        packages.listing(str(tmp_path / "no-python"))
