"""The rules of the house that code can break without any other test noticing."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import container

PACKAGE = Path(container.__file__ or "").parent
ROOT = PACKAGE.parent

#: What of ``container`` the user's side may use: the shared vocabulary, plans and the facts that they are made of, and
#: Linux process primitives.
SHARED = ("container.contract", "container.launchers", "container.system", "container.toolkit.code")

#: Modules of ``container`` for scripts, which need TensorFlow and the like, the S3 code, and Horovod's elastic driver.
FOR_SCRIPTS = (
    "container/distributed", "container/checkpoint", "container/pipe_dataset", "container/agent/s3/",
    "container/standins/names/sagemaker_tensorflow", "container/toolkit/elastic/driver",
)  # fmt: skip


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere, also lazily, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [alias.name for alias in node.names]
            if node.module in ("container", "estimators"):
                yield from ((f"{node.module}.{name}", node.lineno) for name in names)
            else:
                yield (node.module or "", node.lineno)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


#: The rooms of each package, from the top: imports run down these lists only.
ROOMS = {
    "estimators": ("cli", "service", "client", "supervisor", "backends", "results", "records", "job", "provision"),
    "container": (
        "hook", "standins", "distributed", "pipe_dataset", "checkpoint", "toolkit", "agent", "launchers", "formats",
        "system", "contract",
    ),
}  # fmt: skip


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def our_imports(path: Path, modules: set[str], *, hints_too: bool) -> Iterator[tuple[str, int]]:
    """What of our modules a file imports when it is used, at once or later, and what only its type hints name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hints = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in hints and not hints_too:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if name in modules else node.module), node.lineno


@pytest.mark.parametrize("package", list(ROOMS))
def test_imports_run_down_the_rooms(package: str) -> None:
    rooms = ROOMS[package]
    modules = {module_of(path) for path in sources(package)}
    assert {name.split(".")[1] for name in modules if "." in name} - {"__main__"} == set(rooms), "a room is not listed"
    wrong = []
    for path in sources(package):
        room = module_of(path).split(".")[1:2]
        for name, line in our_imports(path, modules, hints_too=True) if room and room[0] in rooms else ():
            other = name.split(".")[1:2]
            if other and rooms.index(other[0]) < rooms.index(room[0]):
                wrong.append(f"{where(path, line)}: {name}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even by imports within functions; type hints may."""
    paths = [path for package in ROOMS for path in sources(package)]
    modules = {module_of(path) for path in paths}
    # A package's own name stands for what its folder has to say for itself, and is no reason to import the whole.
    graph = {
        module_of(path): {name for name, _ in our_imports(path, modules, hints_too=False) if name != module_of(path)}
        for path in paths
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_container_never_imports_estimators() -> None:
    assert len(sources("container")) > 30
    wrong = [
        where(path, line)
        for path in sources("container")
        for module, line in imported(path)
        if module.partition(".")[0] == "estimators"
    ]
    assert wrong == []


def test_estimators_import_of_container_only_what_is_shared() -> None:
    wrong = [
        f"{where(path, line)}: {module}"
        for path in sources("estimators")
        for module, line in imported(path)
        if module.partition(".")[0] == "container" and module != "container" and not module.startswith(SHARED)
    ]
    assert wrong == []


def test_container_needs_the_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "container", "sitecustomize", "_fleetfit_evidence"}
    wrong = [
        f"{where(path, line)}: {module}"
        for path in sources("container")
        if not str(path.relative_to(ROOT)).startswith(FOR_SCRIPTS)
        for module, line in imported(path)
        if module.partition(".")[0] not in allowed
    ]
    assert wrong == []


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
