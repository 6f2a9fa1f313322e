"""The rules of the house that code can break without any other test noticing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import container

PACKAGE = Path(container.__file__ or "").parent
ROOT = PACKAGE.parent

#: Modules of ``container`` for scripts, which need TensorFlow and the like, the S3 code, and Horovod's elastic driver.
FOR_SCRIPTS = (
    "container/distributed", "container/checkpoint", "container/pipe_dataset", "container/agent/s3/",
    "container/standins/names/sagemaker_tensorflow", "container/toolkit/elastic/driver",
)  # fmt: skip


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.landing
def test_container_imports_without_any_installed_package() -> None:
    """For real, in isolated mode and without ``site``."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources("container")
        if not str(path.relative_to(ROOT)).startswith((*FOR_SCRIPTS, "container/hook"))
    ]
    program = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.landing
def test_make_takes_paths_with_spaces() -> None:
    """``make clean`` would remove what stands before the space."""
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    words = ["make", "--dry-run", "--directory", str(ROOT), "VENV=/split here/venv", "PYTHON=/split here/python"]
    done = subprocess.run([*words, *targets], capture_output=True, text=True, check=True)
    found = {word for line in done.stdout.splitlines() for word in shlex.split(line)}
    assert {"/split here/venv", "/split here/venv-newest", "/split here/venv/bin/ruff", "/split here/python"} <= found
    assert not [word for word in found if word == "/split" or word.startswith("here/")]


@pytest.mark.parametrize("command", ["train", "rank", "rsh", "agent", "nonsense"])
def test_every_command_starts_without_any_installed_package(command: str, tmp_path: Path) -> None:
    """It fails for want of a job, in words, and not for want of a module."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PACKAGE / "__main__.py"), command],
        capture_output=True,
        text=True,
        env={"SAGEMAKER_BASE_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode != 0
    assert "ModuleNotFoundError" not in done.stderr + done.stdout
    assert "ImportError" not in done.stderr + done.stdout


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No module of either package makes files, starts processes or imports the heavy ones when it is imported."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("container", "estimators")
        for path in sources(package)
        if path.name != "__main__.py" and not str(path.relative_to(ROOT)).startswith((*FOR_SCRIPTS, "container/hook"))
    ]
    program = (
        "import importlib, os, sys, threading\n"
        "def audit(event, arguments):\n"
        "    if event in ('os.mkdir', 'os.fork', 'subprocess.Popen', 'socket.connect', 'os.posix_spawn'):\n"
        "        sys.exit(f'{event} {arguments}')\n"
        "sys.addaudithook(audit)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = [n for n in ('tensorflow', 'pandas', 'matplotlib', 'sagemaker', 'docker') if n in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
