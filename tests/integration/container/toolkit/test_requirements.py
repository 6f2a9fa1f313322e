"""Overlays, made by real pip from packages that the tests build; no network is needed."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from small_wheels import wheel, write_wheels

import container
from container.toolkit.code.requirements import MARKER, RequirementsError, overlay

ROOT = Path(container.__file__).parent.parent


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> str:
    """An environment that has ffalpha 1.0."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True, symlinks=True)
    path = str(folder / "bin" / "python")
    subprocess.run([path, "-m", "pip", "install", "-q", "--no-index", "-f", wheels, "ffalpha==1.0"], check=True)
    return path


def site_packages(python: str) -> list[str]:
    folder = next((Path(python).parent.parent / "lib").glob("python3*")) / "site-packages"
    return sorted(str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts)


class Maker:
    """Makes overlays of requirements for an interpreter, and keeps what was said."""

    def __init__(self, folder: Path, python: str, wheels: Path) -> None:
        self.code = folder / "code"
        self.code.mkdir()
        self.cache = folder / "cache"
        self.python = python
        self.wheels = wheels
        self.said: list[str] = []
        self.warned: list[str] = []

    def log(self, line: str) -> None:
        self.said.append(line)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def write(self, *lines: str, name: str = "requirements.txt") -> Path:
        path = self.code / name
        path.write_text("\n".join(("--no-index", f"--find-links {shlex.quote(str(self.wheels))}", *lines, "")))
        return path

    def make(self, *lines: str, **options: object) -> Path | None:
        file = self.write(*lines)
        return overlay(file, python=self.python, cache_root=self.cache, told=self, **options)  # type: ignore[arg-type]

    def run(self, found: Path | None, code: str) -> str:
        env = {"PYTHONPATH": str(found) if found else "", "PATH": f"{found}/bin:{os.environ['PATH']}"}
        return subprocess.run([self.python, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def maker(tmp_path: Path, python: str, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    return Maker(tmp_path, python, wheels)


def test_what_is_missing_goes_into_an_overlay(maker: Maker) -> None:
    before = site_packages(maker.python)
    (maker.code / "json.py").write_text("raise ImportError('a module of the script is not for pip')")
    found = maker.make("ffbeta", "ffalpha")
    assert found is not None
    assert maker.run(found, "import ffbeta, ffalpha; print(ffbeta.__file__, ffalpha.version)") == (
        f"{found}/ffbeta.py 1.0\n"
    )
    assert not (found / "ffalpha.py").exists()
    assert json.loads((found / MARKER).read_text())["packages"] == ["ffbeta==1.0"]
    assert site_packages(maker.python) == before
    assert any("installing ffbeta==1.0" in line for line in maker.said)
    assert found.parent == maker.cache / "overlays"
    assert [name for name in os.listdir(found.parent) if name.startswith(".")] == []

    maker.said.clear()
    assert maker.make("ffbeta", "ffalpha") == found
    assert maker.said == []

    (found / MARKER).unlink()  # it was half written
    (found / "ffbeta.py").unlink()
    leftover = found.parent / f".{found.name}.123"
    leftover.mkdir()
    assert maker.make("ffbeta", "ffalpha") == found
    assert (found / "ffbeta.py").exists()
    assert not leftover.exists()


def test_another_version_takes_the_installed_ones_place_and_has_its_script(maker: Maker, wheels: Path) -> None:
    digest = hashlib.sha256((wheels / "ffalpha-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    found = maker.make(f"ffalpha==2.0 \\\n    --hash=sha256:{digest}")
    assert found is not None
    assert maker.run(found, "import ffalpha; print(ffalpha.version)") == "2.0\n"
    tool = subprocess.run(
        [found / "bin" / "ffalpha-tool"], env={"PYTHONPATH": str(found)}, capture_output=True, text=True
    )
    assert tool.stdout == "ffalpha says 2.0\n"
    assert any("is used in place of the installed 1.0" in line for line in maker.said)


def test_nothing_is_missing(maker: Maker) -> None:
    assert maker.make("ffalpha") is None
    assert maker.said
    maker.said.clear()
    assert maker.make("ffalpha") is None
    assert maker.said == []
    assert maker.make("# nothing") is None
    assert overlay(None, python=maker.python, cache_root=maker.cache, told=maker) is None


def test_included_files_and_local_packages(maker: Maker, wheels: Path) -> None:
    (maker.code / "deep").mkdir()
    maker.write("-r deep/more.txt")
    (maker.code / "deep" / "more.txt").write_text("ffalpha\n-c limits.txt\n")
    (maker.code / "deep" / "limits.txt").write_text("ffalpha==2.0\n")
    local = wheel(maker.code / "vendor", "fflocal", "0.1")
    first = maker.make("-r deep/more.txt", f"./vendor/{local.name}")
    assert first is not None
    assert maker.run(first, "import ffalpha, fflocal; print(ffalpha.version, fflocal.version)") == "2.0 0.1\n"
    (maker.code / "deep" / "limits.txt").write_text("ffalpha==1.0\n")
    second = maker.make("-r deep/more.txt", f"./vendor/{local.name}")
    assert second is not None
    assert second != first
    assert not (second / "ffalpha.py").exists()


def test_a_changed_environment_gets_another_overlay(maker: Maker, tmp_path: Path, wheels: Path) -> None:
    mine = tmp_path / "venv"
    venv.create(mine, with_pip=False, symlinks=True)
    packages = next((mine / "lib").glob("python3*")) / "site-packages"
    other = next((Path(maker.python).parent.parent / "lib").glob("python3*")) / "site-packages"
    (packages / "pip").symlink_to(other / "pip")
    maker.python = str(mine / "bin" / "python")
    first = maker.make("ffbeta")
    assert first is not None
    assert (first / "ffalpha.py").exists()
    with zipfile.ZipFile(wheels / "ffalpha-1.0-py3-none-any.whl") as archive:
        archive.extractall(packages)
    second = maker.make("ffbeta")
    assert second not in (None, first)
    assert not (second / "ffalpha.py").exists()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("ffbeta", "ffgamma"), "contradict"),
        ((f"ffalpha==2.0 --hash=sha256:{'0' * 64}",), "hash"),
        (("ffnothing",), "does not exist"),
        (("ffalpha==9",), "does not exist"),
        (("==",), "not a requirement"),
    ],
)
def test_failures_say_what_to_do(maker: Maker, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequirementsError, match=message) as caught:
        maker.make(*lines)
    text = str(caught.value)
    assert str(maker.code / "requirements.txt") in text
    assert "pip said:" in text
    assert "ERROR" in text
    assert [name for name in os.listdir(maker.cache / "overlays") if not name.endswith(".lock")] == []


def test_no_answer_of_an_index_and_none_of_pip(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    (maker.code / "requirements.txt").write_text("--index-url http://127.0.0.1:9/simple\nffnothing\n")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(RequirementsError, match="index cannot be reached"):
        overlay(
            maker.code / "requirements.txt",
            python=maker.python,
            cache_root=maker.cache,
            told=maker,
            timeout=60,
        )
    with pytest.raises(RequirementsError, match="did not end within"):
        maker.make("ffbeta", timeout=0.05)


def test_what_the_machine_lacks_is_named(maker: Maker, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    for python, named in ((str(tmp_path / "bare" / "bin" / "python"), "ensurepip"), ("/nowhere/python",) * 2):
        maker.python = python
        with pytest.raises(RequirementsError, match=named):
            maker.make("ffbeta")
    with pytest.raises(RequirementsError, match=r"missing\.txt"):
        overlay(maker.code / "missing.txt", python=sys.executable, cache_root=maker.cache, told=maker)
    with pytest.raises(RequirementsError, match=r"/more\.txt cannot be read: No such file .* part of the job's code"):
        maker.make("-r ../more.txt")
    maker.python, maker.cache = sys.executable, Path("/proc/nothing")
    with pytest.raises(RequirementsError, match="FLEETFIT_CACHE"):
        maker.make("ffbeta")


def test_hosts_at_once_install_it_once(maker: Maker) -> None:
    maker.write("ffbeta")
    code = (
        "import sys; from pathlib import Path; from container.toolkit.code.requirements import overlay\n"
        "class Told:\n    log = staticmethod(print)\n"
        f"print('=', overlay(Path({str(maker.code / 'requirements.txt')!r}), python={maker.python!r}, "
        f"cache_root=Path({str(maker.cache)!r}), told=Told()))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    hosts = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [host.communicate(timeout=120)[0] for host in hosts]
    assert all(host.returncode == 0 for host in hosts)
    assert sum("installing ffbeta" in text for text in said) == 1
    assert len({text.rpartition("= ")[2] for text in said}) == 1


def test_pip_ends_with_us_and_is_not_confused_by_a_reaper(maker: Maker) -> None:
    file = maker.write("ffnothing")
    code = (
        "import os, signal, sys; from pathlib import Path; from container.toolkit.code.requirements import overlay\n"
        "signal.signal(signal.SIGCHLD, lambda *a: os.waitpid(-1, os.WNOHANG))\n"
        "class Told:\n    log = staticmethod(print)\n"
        f"overlay(Path({str(file)!r}), python={maker.python!r}, cache_root=Path({str(maker.cache)!r}), told=Told())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "RequirementsError" in done.stderr


class TestProjects:
    def project(self, maker: Maker, setup: str) -> Path:
        (maker.code / "setup.py").write_text(setup)
        (maker.code / "src" / "trainer").mkdir(parents=True)
        (maker.code / "src" / "trainer" / "__init__.py").write_text("where = __file__\n")
        return maker.code

    def test_it_is_built_and_installed_beside(self, maker: Maker, wheels: Path) -> None:
        maker.python = sys.executable  # it has setuptools
        folder = self.project(
            maker,
            "from setuptools import setup\n"
            "setup(name='fftrainer', version='1', package_dir={'': 'src'}, packages=['trainer'],\n"
            "      install_requires=['ffbeta'])\n",
        )
        found = maker.make("ffalpha==1.0", project=folder)
        assert found is not None
        assert maker.run(found, "import trainer, ffbeta, ffalpha; print(trainer.where)").strip() == str(
            found / "trainer" / "__init__.py"
        )
        assert sorted(os.listdir(folder)) == ["requirements.txt", "setup.py", "src"]
        maker.said.clear()
        assert maker.make("ffalpha==1.0", project=folder) == found
        assert maker.said == []
        (folder / "src" / "trainer" / "__init__.py").write_text("where = 'changed'\n")
        assert maker.make("ffalpha==1.0", project=folder) not in (None, found)

    def make(self, maker: Maker, folder: Path) -> tuple[Path | None, list[str]]:
        maker.warned.clear()
        file = folder / "requirements.txt"
        found = overlay(
            file if file.exists() else None,
            python=maker.python,
            cache_root=maker.cache,
            told=maker,
            project=folder,
        )
        return found, maker.warned

    def test_one_that_does_not_build_is_a_warning(self, maker: Maker) -> None:
        maker.python = sys.executable
        folder = self.project(maker, "raise SystemExit('no way')\n")
        for _ in range(2):  # it is kept that it cannot
            found, [said] = self.make(maker, folder)
            assert found is None
            assert "the package in source_dir could not be built" in said
            assert "its dependencies must be in a requirements.txt" in said

    def test_the_dependencies_of_one_that_does_not_build_are_installed(self, maker: Maker) -> None:
        """setuptools does not guess which of two packages of a flat layout is meant."""
        maker.python = sys.executable
        for name in ("data", "model"):
            (maker.code / name).mkdir()
            (maker.code / name / "__init__.py").touch()
        (maker.code / "pyproject.toml").write_text(
            "[project]\nname = 'ff'\nversion = '1'\ndependencies = ['ffgamma']\n"
        )
        maker.write()
        found, [said] = self.make(maker, maker.code)
        assert "Multiple top-level packages discovered" in said and "its dependencies are installed" in said
        assert maker.run(found, "import ffgamma; print(ffgamma.version)").strip() == "1.0"

    def test_an_editable_line_for_it_does_not_collide_with_it(
        self, maker: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        maker.python = sys.executable
        folder = self.project(
            maker,
            "from setuptools import setup\nsetup(name='fftrainer', package_dir={'': 'src'}, packages=['trainer'])\n",
        )
        maker.write("-e .")
        monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # so that pip needs no index
        found, warned = self.make(maker, folder)
        assert warned == [] and maker.run(found, "import trainer; print(trainer.where)").strip()

    def test_a_branch_that_has_moved_is_installed_anew(
        self, maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
        repository = tmp_path / "repository"
        repository.mkdir()
        git = ["git", "-C", str(repository), "-c", "user.name=me", "-c", "user.email=me@example.org"]
        subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
        maker.python = sys.executable
        found = []
        for version in ("1", "2"):
            (repository / "setup.py").write_text(
                f"from setuptools import setup\nsetup(name='ffgit', version='{version}', py_modules=['ffgit'])\n"
            )
            (repository / "ffgit.py").write_text(f"version = {version!r}\n")
            subprocess.run([*git, "add", "-A"], check=True)
            subprocess.run([*git, "commit", "-qm", version], check=True)
            folder = maker.make(f"ffgit @ git+file://{repository}@main")
            found.append(maker.run(folder, "import ffgit; print(ffgit.version)").strip())
        assert found == ["1", "2"]
