"""The rules of the house that code can break without any other test noticing."""

from __future__ import annotations

import ast
import functools
import graphlib
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


@functools.cache
def import_statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import of a file, also within functions, and whether only its type hints need it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    hints = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return [(node, id(node) in hints) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere, also lazily, with the line."""
    for node, _ in import_statements(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        else:
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
    "estimators": (
        "cli", "service", "tuning", "client", "supervisor", "backends", "results", "records", "job", "provision",
    ),
    "container": (
        "hook", "standins", "distributed", "pipe_dataset", "checkpoint", "toolkit", "agent", "launchers", "formats",
        "system", "contract",
    ),
}  # fmt: skip


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def our_imports(path: Path, modules: set[str], *, hints_too: bool) -> Iterator[tuple[str, int]]:
    """What of our modules a file imports when it is used, at once or later, and what only its type hints name."""
    for node, hint in import_statements(path):
        if hint and not hints_too:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules)
        elif node.module in modules:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if name in modules else node.module), node.lineno


@pytest.mark.parametrize("package", list(ROOMS))
def test_imports_run_down_the_rooms(package: str) -> None:
    rooms = ROOMS[package]
    modules = {module_of(path) for path in sources(package)}
    public = {path.stem for path in (ROOT / package).glob("*.pyi")}  # modules that only hand names on
    named = {name.split(".")[1] for name in modules if "." in name} - {"__main__"} - public
    assert named == set(rooms), "a room is not listed"
    assert not public & set(rooms)
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
    allowed = {
        *sys.stdlib_module_names,
        "container",
        "sitecustomize",
        "_fleetfit_arguments",
        "_fleetfit_evidence",
    }
    wrong = [
        f"{where(path, line)}: {module}"
        for path in sources("container")
        if not str(path.relative_to(ROOT)).startswith(FOR_SCRIPTS)
        for module, line in imported(path)
        if module.partition(".")[0] not in allowed
    ]
    assert wrong == []
