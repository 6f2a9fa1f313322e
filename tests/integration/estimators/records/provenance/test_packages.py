"""The package listing says what ``pip freeze`` says."""

import json
import subprocess
import sys
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


def pip_freeze(python: str) -> list[str]:
    done = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, check=True, timeout=120, text=True)
    return done.stdout.splitlines()


def test_environments_are_listed_as_pip_does(tmp_path: Path) -> None:
    """This one, and another with direct URLs and editable installs."""
    assert packages.freeze(packages.site_folders()) == pip_freeze(sys.executable)
    python = str(make_environment(tmp_path) / "bin" / "python")
    values = packages.listing(python)
    expected = pip_freeze(python)
    assert values["freeze"] == expected
    assert values["python"] == python
    assert any(line.startswith("Plain.Name @ file://") for line in expected)
    assert any(line.startswith("-e ") for line in expected)
    with pytest.raises(OSError, match="no-python"):
        packages.listing(str(tmp_path / "no-python"))


def test_an_editable_install_from_git_names_its_commit(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    command = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=b"]

    def run(*arguments: str) -> str:
        return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q")
    run("commit", "-q", "--allow-empty", "-m", "x")
    info = tmp_path / "site-packages" / "my_project-3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 3\n")
    (info / "direct_url.json").write_text(
        json.dumps({"url": (project / "sub").as_uri(), "dir_info": {"editable": True}})
    )
    lines = packages.freeze([str(info.parent)])
    assert lines == ["# Editable Git install with no remote (my-project==3)", f"-e {project / 'sub'}"]
    run("remote", "add", "origin", "https://u:p@example.org/p.git")
    [line] = packages.freeze([str(info.parent)])
    head = run("rev-parse", "HEAD")
    assert line == f"-e git+https://***@example.org/p.git@{head}#egg=my_project&subdirectory=sub"
    for remote, url in (
        (str(tmp_path), tmp_path.as_uri()),
        ("git@example.org:p.git", "ssh://***@example.org/p.git"),
        ("example.org:a/p.git", "ssh://example.org/a/p.git"),
    ):
        run("remote", "set-url", "origin", remote)
        assert packages.freeze([str(info.parent)]) == [f"-e git+{url}@{head}#egg=my_project&subdirectory=sub"]
