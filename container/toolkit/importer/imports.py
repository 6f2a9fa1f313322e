"""Read from a script's source which imports an importer may execute before the script runs. No code is executed.

The result contains the imports of packages that the script executes before it does anything else, and the variables
that the script sets to literal values before its imports. Of the later imports, the result contains only those of slow
packages (:data:`SLOW`), wherever they are in the script's files. If any code in these files may change what such an
import finds or reads, the later imports are omitted. If this module misjudges a script, the script's import statement
raises an error instead of returning a wrong module (:class:`container.toolkit.importer.loading.Given`).
"""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from container.contract.layout import FUNCTION_FOLDER, FUNCTION_IMPORTS
from container.system.importing import top_of
from container.system.variables_read import is_read_at_load

#: Packages whose import takes so long that a separate process is worthwhile.
SLOW = frozenset(("horovod", "jax", "keras", "tensorflow", "tf_keras", "torch"))
#: Packages whose import has effects: they start MPI, set variables, or observe later imports.
_ACTING = frozenset(("comet_ml", "coverage", "debugpy", "dotenv", "mpi4py", "pycuda", "ray", "smdebug", "wandb"))
#: Code that may change later imports, as :func:`ast.unparse` writes it. The groups capture the name of the variable
#: that the code sets.
_HAZARD = re.compile(
    r"environ\[(?:'(?P<set>\w+)'|[^\]]*)\] = |environ\.(?:setdefault|pop)\((?:'(?P<named>\w+)')?"
    r"|environ\.(?:update|clear)\(|environ \|=|del .*environ\[|[=,(] ?(?:os\.)?environ$|import environ\b"
    r"|\b(?:putenv|unsetenv|__import__|import_module)\(|(?<![.\w])(?:exec|eval)\(|\brun(?:_path|_module)\(|\bsys\.path\b|\bmeta_path\b|'pip'"
    rf"|^ *(?:import|from) (?:{'|'.join(sorted(_ACTING))})\b",
    re.MULTILINE,
)
#: PyTorch's first optimizer imports its compiler, which takes as long as torch itself. The compiler is imported for a
#: script that creates an optimizer, unless the script configures the compiler.
_USES_COMPILER = re.compile(r"\boptim\b")
_CHANGES_COMPILER = re.compile(r"TORCH(?!ELASTIC)[_A-Z]|_dynamo|_inductor|_logging")
#: The module of fleetfit that imports Horovod, as an import statement names it.
_DISTRIBUTED = re.compile(r"(?:import|from) container\b.*\bdistributed\b")
_MOST_BYTES, _MOST_MODULES = 1 << 20, 64

#: Files of a project, each with the package to which its relative imports refer.
_Files = dict[Path, tuple[str, ...]]


class Imports(NamedTuple):
    """The imports and settings that an importer executes for a script.

    Attributes:
        statements: The import statements.
        settings: The variables that the script sets first, as ``(name, value, whether the value is only a default)``.
        names: The modules and packages in the script's folders. Importers must not import these modules.
        reason: The reason why some or all imports are omitted. Empty if none is omitted.
    """

    statements: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, bool], ...] = ()
    names: tuple[str, ...] = ()
    reason: str = ""

    @property
    def packages(self) -> frozenset[str]:
        """Return the names of the installed packages that the statements import."""
        return frozenset(map(top_of, self.statements)) - {"container"}


def read(script: Path, folder: Path, *, horovod: bool = False) -> Imports:
    """Read the imports of a script.

    Args:
        script: The file of the script.
        folder: The code folder. Like the script's own folder, it is in the script's ``sys.path``.
        horovod: Whether ``distributed.init()`` imports Horovod.
    """
    reader = _Reader((script.parent, folder))
    function = folder / FUNCTION_FOLDER / FUNCTION_IMPORTS
    try:
        if shadowed := sorted(reader.names & sys.stdlib_module_names):
            return Imports(reason=f"the script's folder has a module {shadowed[0]}")
        reader.read(function if function.is_file() else script, ())
        texts = {file: ast.unparse(tree) for file, tree in reader.trees.items()}
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return Imports(reason=f"its imports cannot be read: {error}")
    hazard = _hazard(("the function" if file == function else file.name, text) for file, text in texts.items())
    statements = [*reader.head, *(() if hazard else reader.slow)]
    tops, source = set(map(top_of, statements)), "\n".join(texts.values())
    if horovod and ("container" in tops or _DISTRIBUTED.search(source)):
        statements += [f"import horovod.{one}" for one in ("tensorflow", "torch") if one in tops]
    if "torch" in tops and _USES_COMPILER.search(source) and not _CHANGES_COMPILER.search(source):
        statements.append("import torch._dynamo")
    reason = "" if set(reader.slow).issubset(statements) else hazard
    return Imports(tuple(dict.fromkeys(statements)), tuple(reader.settings), tuple(sorted(reader.names)), reason)


def _hazard(texts: Iterable[tuple[str, str]]) -> str:
    """Return a phrase that names code with a possible effect on later imports. Return an empty text if there is no such
    code.

    Args:
        texts: The names and texts of a project's files.
    """
    for file, text in texts:
        for match in _HAZARD.finditer(text):
            variable = match["set"] or match["named"]
            if variable is None or is_read_at_load(variable):
                return f"{file} has {match[0].strip()!r}"
    return ""


class _Reader:
    """Read a script, and those modules of its project that it imports.

    Attributes:
        names: The names of the modules and packages in the project's folders.
        trees: The syntax tree of each file, without the statements that set variables in ``settings``.
        head: The imports at the beginning of the script.
        settings: The variables that the script sets before these imports, as in :class:`Imports`.
        slow: All imports of slow packages.
    """

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self._roots = roots
        self.names = frozenset(module.name for module in pkgutil.iter_modules(map(str, roots)))
        self.trees: dict[Path, ast.Module] = {}
        self.head: list[str] = []
        self.settings: list[tuple[str, str, bool]] = []
        self.slow: list[str] = []
        self._run: set[Path] = set()
        self._has_acted = self._has_imported = False

    def read(self, file: Path, package: tuple[str, ...], *, runs: bool = True) -> None:
        """Read a file, and all of the project's files that it imports, in the order in which they run.

        Args:
            file: The file.
            package: The package to which the file's relative imports refer.
            runs: Whether the script certainly runs the file before the statements that are read next. If not, only the
                file's imports of slow packages are collected.

        Raises:
            ValueError: the project is too large.
        """
        if file in (self._run if runs else self.trees):
            return
        if file not in self.trees:
            if len(self.trees) == _MOST_MODULES or file.stat().st_size > _MOST_BYTES:
                raise ValueError("the project is too large")
            self.trees[file] = ast.parse(file.read_bytes())
        self._run |= {file} if runs else set()
        body = self.trees[file].body
        for statement in list(body):
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self._take_imports(statement, package, runs=runs)
                case ast.Assign([ast.Subscript(to, ast.Constant(str(name)))], ast.Constant(str(value))) | ast.Expr(
                    ast.Call(ast.Attribute(to, "setdefault"), [ast.Constant(str(name)), ast.Constant(str(value))])
                ) if runs and ast.unparse(to) == "os.environ" and not self._has_imported:
                    self.settings.append((name, value, isinstance(statement, ast.Expr)))
                    body.remove(statement)
                case ast.Expr(ast.Constant()) | ast.Assign([ast.Name()], ast.Constant()) | ast.Pass():
                    pass
                case _:
                    self._has_acted = True
                    for node in ast.walk(statement):
                        self._take_imports(node, package, runs=False)

    def _take_imports(self, node: ast.AST, package: tuple[str, ...], *, runs: bool) -> None:
        for text, files in self._imported(node, package):
            for file, its_package in files.items():
                self.read(file, its_package, runs=runs)
            top = top_of(text)
            self.slow += [text] if top in SLOW - self.names else []
            if files or not runs or top in sys.stdlib_module_names:
                continue
            if not top or top in self.names | _ACTING:
                self._has_acted = True
            self.head += [] if self._has_acted else [text]
            self._has_imported |= not self._has_acted or top in SLOW

    def _imported(self, node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, _Files]]:
        """Yield each import of an import statement as a separate statement, with the project's files that the import
        executes. Yield nothing if the node is not an import statement.

        Args:
            node: A node of a file's syntax tree.
            package: The package to which the file's relative imports refer.
        """
        if isinstance(node, ast.Import):
            yield from ((f"import {alias.name}", self._files(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*parents, node.module or "")).rstrip(".")
            files = self._files(module)
            for alias in node.names if files else ():
                files |= self._files(f"{module}.{alias.name}")
            yield f"from {module or '.'} import *" if node.level else ast.unparse(node), files

    def _files(self, module: str) -> _Files:
        """Return the project's files of a module and of its parent packages, with the package of each file."""
        found: _Files = {}
        parts = tuple(module.split("."))
        for count in range(1, len(parts) + 1):
            for path in (root.joinpath(*parts[:count]) for root in reversed(self._roots)):
                if (path / "__init__.py").is_file():  # Python prefers the package to a module with the same name
                    found[path / "__init__.py"] = parts[:count]
                else:
                    found[path.with_name(f"{path.name}.py")] = parts[: count - 1]
        return {file: package for file, package in found.items() if file.is_file()}
