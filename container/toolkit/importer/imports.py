"""What a script will import, read from its source. Nothing of it is run. Pure but for the files that are read.

Imports that stand at a module's beginning, before it does anything else, are taken as they are. From there on only
those of :data:`FRAMEWORKS` are, wherever they stand: these have no effects that a script could tell, but for the
environment, which they read. So where it is not plain what a script sets, nothing more is taken: importing too little
costs time, and importing too early would change what a script gets.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What may be imported before whatever a script does first.
FRAMEWORKS = frozenset(("container", "horovod", "keras", "tensorflow", "tf_keras", "torch"))
#: Packages that act when they are imported: they start MPI, connect to servers, or watch what is imported after them.
_ACTING = frozenset(("comet_ml", "coverage", "debugpy", "mpi4py", "pycuda", "ray", "sitecustomize", "smdebug", "wandb"))
#: What of ``sys`` a script changes to have something else found, or otherwise.
_FINDING = frozenset(("meta_path", "modules", "path", "path_hooks", "setdlopenflags"))
#: What of ``os.environ`` only looks.
_LOOKING = frozenset(("copy", "get", "items", "keys", "values"))
_MOST_BYTES = 1 << 20
_MOST_MODULES = 64


@dataclasses.dataclass(frozen=True)
class Imports:
    """What an importer is to do.

    Attributes:
        statements: Import statements, in the script's order.
        settings: Variables that the script sets first, as ``(name, value, whether only if it is not set)``.
        names: The modules and packages that lie in the script's folders, which are not to be imported.
    """

    statements: tuple[str, ...]
    settings: tuple[tuple[str, str, bool], ...]
    names: frozenset[str]

    @property
    def packages(self) -> frozenset[str]:
        """The installed packages that are imported."""
        return frozenset(text.split()[1].partition(".")[0] for text in self.statements) - {"container"}

    def to_json(self) -> dict[str, Any]:
        """Return it as the importer takes it."""
        return {
            "settings": [list(setting) for setting in self.settings],
            "statements": list(self.statements),
            "names": sorted(self.names),
        }


def read(script: Path, folder: Path) -> Imports | None:
    """Read what a script will import.

    Args:
        script: Its file.
        folder: The code's folder, which is in the script's ``sys.path`` beside its own.

    Returns:
        What to import; None where that cannot be told: a file that does not parse, or one with a module of Python's
        own name beside it.
    """
    roots = (script.parent, folder)
    try:
        names = frozenset(name for root in roots for name in _modules(root))
        if names & sys.stdlib_module_names:
            return None
        reader = _Reader(roots, names)
        reader.take(script)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return Imports(tuple(dict.fromkeys(reader.statements)), tuple(reader.settings), names)


def _modules(folder: Path) -> Iterator[str]:
    """Yield the names by which what lies in a folder can be imported before anything that is installed."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir():
            if (entry / "__init__.py").exists():
                yield entry.name
        elif entry.suffix in (".py", ".pyc", ".so"):
            yield entry.name.partition(".")[0]


class _Reader:
    """Reads a script and what it imports of its own project, in the order in which it will be run."""

    def __init__(self, roots: tuple[Path, ...], names: frozenset[str]) -> None:
        self._roots = roots
        self._names = names
        self._read: set[Path] = set()
        self._beginning = True  # nothing has been done but importing
        self._plain = True  # it is known what has been set
        self.statements: list[str] = []
        self.settings: list[tuple[str, str, bool]] = []

    def take(self, file: Path) -> None:
        """Read a file.

        Raises:
            OSError: it cannot be read.
            SyntaxError: it is no Python.
            ValueError: it is too much.
        """
        if file in self._read:
            return
        self._read.add(file)
        if len(self._read) > _MOST_MODULES or file.stat().st_size > _MOST_BYTES:
            raise ValueError("the project is too large to be read")
        tree = ast.parse(file.read_bytes())
        for statement in tree.body:
            if not self._plain:
                return
            self._take_statement(statement)

    def _take_statement(self, statement: ast.stmt) -> None:
        setting = _setting(statement)
        if setting is not None:
            if self.statements:
                self._plain = False  # what has been imported by then does not see it
            else:
                self.settings.append(setting)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            self._take_import(statement, anything=self._beginning)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._take_inner(statement)
        else:
            self._beginning = self._beginning and not any(isinstance(node, _DOING) for node in ast.walk(statement))
            self._take_inner(statement)

    def _take_inner(self, statement: ast.stmt) -> None:
        """What is within a statement: imports that will be reached sooner or later, and what is set before."""
        for node in ast.walk(statement):
            if _sets(node):
                self._plain = False
                return
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom) and self._plain:
                self._take_import(node, anything=False)
            elif _is_keras(node) and any("tensorflow" in text for text in self.statements):
                self.statements.append(_KERAS)

    def _take_import(self, node: ast.Import | ast.ImportFrom, *, anything: bool) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.level:  # of a package of the project's
                self._beginning = False
                return
            modules = [node.module or ""]
        else:
            modules = [alias.name for alias in node.names]
        for module in modules:
            top = module.partition(".")[0]
            if top in _ACTING:
                self._plain = self._beginning = False
            elif top in self._names:
                self._take_own(module)
            elif self._plain and top not in sys.stdlib_module_names and (anything or top in FRAMEWORKS):
                alone = ast.Import([ast.alias(module)]) if isinstance(node, ast.Import) else node
                self.statements.append(ast.unparse(alone))

    def _take_own(self, module: str) -> None:
        """Read a module of the project's, with the packages that it lies in."""
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            for root in self._roots:
                path = root.joinpath(*parts[:count])
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                if file.is_file():
                    self.take(file)
                    break
            else:
                self._beginning = False  # compiled, or made by something else


#: Nodes that do something where they stand at a module's top.
_DOING = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.With, ast.Delete, ast.For, ast.While, ast.Raise)
_KERAS = "from tensorflow import keras\nkeras.Model"


def _setting(statement: ast.stmt) -> tuple[str, str, bool] | None:
    """``os.environ["NAME"] = "value"`` or ``os.environ.setdefault("NAME", "value")``, if the statement is that."""
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=environ, slice=ast.Constant(value=str(name)))],
            value=ast.Constant(value=str(value)),
        ) if _is_environ(environ):
            return name, value, False
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=environ, attr="setdefault"),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
                keywords=[],
            )
        ) if _is_environ(environ):
            return name, value, True
    return None


def _is_keras(node: ast.AST) -> bool:
    """Return whether a node is ``tf.keras``, which TensorFlow imports when it is first used."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "keras"
        and isinstance(node.value, ast.Name)
        and node.value.id in ("tf", "tensorflow")
    )


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _sets(node: ast.AST) -> bool:
    """Return whether a node may change the environment, or what is found by an import."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ") | ast.Name(id="environ"), ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(attr="environ", ctx=ast.Store()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name(id="environ"), attr=method)):
            return method not in _LOOKING
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name == "exec" or (re.search("env", name, re.IGNORECASE) is not None and name != "getenv")
        case ast.Attribute(attr=name, value=ast.Name(id="sys")):
            return name in _FINDING
    return False
