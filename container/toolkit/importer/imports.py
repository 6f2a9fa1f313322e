"""What a script imports first, read from its source. Nothing of it is run. Pure but for the files that are read.

Of what a script imports only its head counts: its imports up to the first statement that is not known to be harmless.
Harmless are imports of the standard library and of the project's own modules, whose heads are read likewise, constants,
definitions of functions and classes, and ``os.environ["NAME"] = "value"`` with both written out. Whatever else stands
before an import may change what is imported, or what that reads: importing too little costs time, importing too early
would have a script train with something else than it asked for.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Packages that act when they are imported: they start MPI, connect to servers, or watch what is imported after them.
_ACTING = frozenset(("comet_ml", "coverage", "debugpy", "mpi4py", "pycuda", "ray", "sitecustomize", "smdebug", "wandb"))
#: Functions that only compute or look, by their full names; those of ``builtins`` have no dot.
_LOOKING = frozenset(
    (
        *("abs", "all", "any", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "hasattr", "int", "len"),
        *("isinstance", "list", "max", "min", "next", "range", "repr", "round", "set", "sorted", "str", "sum", "type"),
        *("tuple", "zip", "collections.OrderedDict", "collections.namedtuple", "json.loads"),
        *("logging.getLogger", "os.environ.copy", "os.environ.get", "os.getcwd", "os.getenv", "os.getpid"),
        *(f"os.path.{name}" for name in ("abspath", "basename", "dirname", "exists", "expanduser", "isdir", "isfile")),
        *("os.path.join", "os.path.realpath", "pathlib.Path", "re.compile"),
        *("collections.Counter", "collections.deque", "dataclasses.field", "datetime.timedelta", "enum.auto"),
        *("functools.partial", "operator.attrgetter", "operator.itemgetter", "typing.cast"),
        *("time.monotonic", "time.perf_counter", "time.time", "typing.NamedTuple", "typing.NewType", "typing.TypeVar"),
    )
)
#: Methods of texts, dicts and paths that change nothing.
_LOOKING_METHODS = frozenset(
    (
        *("encode", "endswith", "exists", "format", "get", "is_dir", "is_file", "items", "join", "joinpath", "keys"),
        *("lower", "partition", "resolve", "rpartition", "rsplit", "split", "startswith", "strip", "upper"),
        "values",
    )
)
#: Decorators that do nothing beside what they decorate.
_DECORATORS = frozenset(
    (
        *("classmethod", "property", "staticmethod"),
        *("abc.abstractmethod", "contextlib.contextmanager", "dataclasses.dataclass", "functools.cache"),
        *("functools.lru_cache", "functools.wraps", "typing.overload"),
    )
)
#: What a package imports when it is first used, for which no script asks by name: the package, what a script that will
#: use it so contains, what one contains that may change how it is imported, and the module. PyTorch's first optimizer
#: imports its compiler, which takes as long as torch itself.
_ON_USE = (
    (
        "torch",
        re.compile(rb"\boptim\b"),
        re.compile(rb"TORCH(?!ELASTIC)[_A-Z]|_dynamo|_inductor|torch\._logging"),
        "torch._dynamo",
    ),
)
_MOST_BYTES = 1 << 20
_MOST_MODULES = 64
_MOST_FILES = 1000


@dataclasses.dataclass(frozen=True)
class Imports:
    """What an importer is to do.

    Attributes:
        statements: Import statements of the script's head, in its order.
        settings: Variables that the script sets first, as ``(name, value, whether only if it is not set)``.
        names: The modules and packages that lie in the script's folders, which are not to be imported.
        on_use: Modules that its packages import when they are used; one that fails is left to the ranks.
    """

    statements: tuple[str, ...]
    settings: tuple[tuple[str, str, bool], ...]
    names: frozenset[str]
    on_use: tuple[str, ...] = ()

    @property
    def packages(self) -> frozenset[str]:
        """The installed packages that are imported."""
        return frozenset(text.split()[1].partition(".")[0] for text in self.statements) - {"container"}

    def to_json(self) -> dict[str, Any]:
        """Return it as the importer takes it."""
        return {
            "settings": [list(setting) for setting in self.settings],
            "statements": list(self.statements),
            "on_use": list(self.on_use),
            "names": sorted(self.names),
        }


def read(script: Path, folder: Path) -> Imports | None:
    """Read what a script imports first.

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
        folders = frozenset(name for root in roots for name in _folders(root)) - names
        reader = _Reader(roots, names, folders)
        reader.take(script)
    except (OSError, SyntaxError, ValueError, RecursionError, ImportError):
        return None
    on_use: tuple[str, ...] = ()
    with contextlib.suppress(OSError, ValueError):
        on_use = tuple(_on_use(reader, folder))
    return Imports(tuple(dict.fromkeys(reader.statements)), tuple(reader.settings), names, on_use)


def _on_use(reader: _Reader, folder: Path) -> Iterator[str]:
    """Yield what a script's packages will import when it uses them, unless a file of it has a word in that."""
    tops = {statement.split()[1].partition(".")[0] for statement in reader.statements}
    for top, used, changed, module in _ON_USE:
        if top in tops and used.search(reader.text) and not any(map(changed.search, _texts(folder))):
            yield module


def _texts(folder: Path) -> Iterator[bytes]:
    """Yield what all Python files of a folder contain.

    Raises:
        ValueError: it is too much.
    """
    for number, file in enumerate(folder.rglob("*.py")):
        if number == _MOST_FILES or file.stat().st_size > _MOST_BYTES:
            raise ValueError("the project is too large to be read")
        yield file.read_bytes()


def _modules(folder: Path) -> Iterator[str]:
    """Yield the names by which what lies in a folder can be imported before anything that is installed."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir():
            if (entry / "__init__.py").exists():
                yield entry.name
        elif entry.suffix in (".py", ".pyc", ".so"):
            yield entry.name.partition(".")[0]


def _folders(folder: Path) -> Iterator[str]:
    """Yield the names of mere folders, which can be imported where nothing that is installed has the name."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name.isidentifier() and entry.is_dir() and not (entry / "__init__.py").exists():
            yield entry.name


class _Reader:
    """Reads a script and what it imports of its own project, in the order in which it will be run.

    Attributes:
        statements: The imports of what is installed.
        settings: The variables that are set before them.
        text: All files that were read, to their ends.
    """

    def __init__(self, roots: tuple[Path, ...], names: frozenset[str], folders: frozenset[str]) -> None:
        self._roots = roots
        self._names = names
        self._folders = folders
        self._read: set[Path] = set()
        self.text = b""
        self.statements: list[str] = []
        self.settings: list[tuple[str, str, bool]] = []

    def take(self, file: Path, package: tuple[str, ...] = ()) -> bool:
        """Read a file.

        Args:
            file: The file.
            package: The names of the package that it lies in.

        Returns:
            Whether all of it is known to be harmless.

        Raises:
            OSError: it cannot be read.
            SyntaxError: it is no Python.
            ValueError: it is too much.
        """
        if file in self._read:
            return True
        self._read.add(file)
        if len(self._read) > _MOST_MODULES or file.stat().st_size > _MOST_BYTES:
            raise ValueError("the project is too large to be read")
        names, text = _Names(), file.read_bytes()
        self.text += text
        return all(self._take(statement, names, package) for statement in ast.parse(text).body)

    def _take(self, statement: ast.stmt, names: _Names, package: tuple[str, ...]) -> bool:
        """Take a module's next statement; returns whether it is known to be harmless."""
        match statement:
            case ast.Import():
                names.imported(statement)
                return all(self._take_module(alias.name, ast.Import([alias])) for alias in statement.names)
            case ast.ImportFrom():
                names.imported(statement)
                return self._take_from(statement, package)
            case ast.If(test=test) if names.full(test) == "typing.TYPE_CHECKING":
                return all(self._take(inner, names, package) for inner in statement.orelse)
            case ast.Try():
                return self._take_try(statement, names, package)
        setting = names.setting(statement)
        if setting is None:
            return names.is_harmless(statement)
        if self.statements:
            return False  # what has been imported by then does not see it
        self.settings.append(setting)
        return True

    def _take_try(self, statement: ast.Try, names: _Names, package: tuple[str, ...]) -> bool:
        """Take imports that may fail: it must not matter whether they do."""
        imports = (*statement.body, *statement.orelse)
        if not all(isinstance(one, ast.Import | ast.ImportFrom | ast.Pass) and _is_there(one) for one in imports):
            return False
        if not all(self._take(one, names, package) for one in imports):
            return False
        handled = [one for handler in statement.handlers for one in handler.body if not isinstance(one, ast.Raise)]
        return names.may_be([*handled, *statement.finalbody])

    def _take_from(self, statement: ast.ImportFrom, package: tuple[str, ...]) -> bool:
        module = statement.module or ""
        if statement.level:
            if statement.level > len(package):
                return False
            module = ".".join((*package[: len(package) - statement.level + 1], *module.split("."))).rstrip(".")
        if not self._is_own(module):
            return not statement.level and self._take_module(module, statement)
        if not self._take_own(module):
            return False
        if any(alias.name == "*" for alias in statement.names) and self._is_package(module):
            return False  # its ``__all__`` says what else is imported
        inner = [self._file(f"{module}.{alias.name}") for alias in statement.names]
        parents = tuple(module.split("."))
        return all(
            self.take(file, _package(file, (*parents, alias.name)))
            for file, alias in zip(inner, statement.names, strict=True)
            if file is not None
        )

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._names

    def _take_module(self, module: str, statement: ast.Import | ast.ImportFrom) -> bool:
        top = module.partition(".")[0]
        if top in _ACTING:
            return False
        if self._is_own(module):
            return self._take_own(module)
        if top not in sys.stdlib_module_names:
            if top in self._folders and not _is_installed(top):
                return False
            if isinstance(statement, ast.Import):
                statement = ast.Import([ast.alias(module)])
            self.statements.append(ast.unparse(statement))
        return True

    def _take_own(self, module: str) -> bool:
        """Read a module of the project's, with the packages that it lies in."""
        parts = tuple(module.split("."))
        for count in range(1, len(parts) + 1):
            file = self._file(".".join(parts[:count]))
            if file is None or not self.take(file, _package(file, parts[:count])):
                return False  # compiled, or made by something else
        return True

    def _file(self, module: str) -> Path | None:
        """Return the file of one of the project's modules, if it has one that can be read."""
        for root in self._roots:
            path = root.joinpath(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
            if file.is_file():
                return file
        return None

    def _is_package(self, module: str) -> bool:
        file = self._file(module)
        return file is not None and file.name == "__init__.py"


def _package(file: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the package that relative imports in a module count from."""
    return names if file.name == "__init__.py" else names[:-1]


def _is_there(statement: ast.stmt) -> bool:
    """Return whether an import finds what it names, as far as that can be told here; what else there is does."""
    tops = _tops(statement) if isinstance(statement, ast.Import | ast.ImportFrom) else ()
    return all(importlib.util.find_spec(top) is not None for top in tops if top)


def _is_installed(top: str) -> bool:
    """Return whether what is installed has a module or package of a name, and not only a folder."""
    spec = importlib.util.find_spec(top)
    return spec is not None and spec.origin is not None


def _tops(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the first words of what is imported; an empty one for what lies beside a module."""
    if isinstance(statement, ast.ImportFrom):
        return ["" if statement.level else str(statement.module).partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in statement.names]


def _is_passive(statement: ast.stmt) -> bool:
    """Return whether a statement of a class has nothing called when a class is derived, and binds its own names."""
    called = ("__init_subclass__", "__set_name__", "__class_getitem__")
    return not isinstance(statement, ast.Global) and getattr(statement, "name", "") not in called


class _Names:
    """What the names of a module mean, as far as they are of the standard library."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}
        self._has_builtins = True

    def imported(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Take the names that an import binds."""
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                name = alias.asname or full
            else:
                name, full = alias.asname or alias.name, f"{statement.module}.{alias.name}"
            standard = full.partition(".")[0] in sys.stdlib_module_names and not getattr(statement, "level", 0)
            if name == "*" and not standard:
                self._known = dict.fromkeys(self._known)  # any of them may mean something else now
                self._has_builtins = False
            self._known[name] = full if standard else None

    def full(self, node: ast.expr) -> str | None:
        """Return what a name, or an attribute of one, is in full: ``os.environ``, or a builtin's name."""
        if isinstance(node, ast.Name):
            builtin = self._has_builtins and hasattr(builtins, node.id)
            return self._known.get(node.id, node.id if builtin else None)
        if isinstance(node, ast.Attribute):
            of = self.full(node.value)
            return None if of is None else f"{of}.{node.attr}"
        return None

    def setting(self, statement: ast.stmt) -> tuple[str, str, bool] | None:
        """Return what ``os.environ["NAME"] = "value"``, or ``setdefault`` likewise, sets, if a statement is that."""
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(value=environ, slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(value)),
            ) if self.full(environ) == "os.environ":
                return name, value, False
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=environ, attr="setdefault"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
                    keywords=[],
                )
            ) if self.full(environ) == "os.environ":
                return name, value, True
        return None

    def is_harmless(self, statement: ast.stmt) -> bool:
        """Return whether a statement changes nothing but the module's own names; takes these."""
        match statement:
            case ast.Pass() | ast.Global():
                return True
            case ast.Import() | ast.ImportFrom():
                self.imported(statement)
                return all(name in sys.stdlib_module_names for name in _tops(statement))
            case ast.Expr(value=value):
                return self._only_looks(value)
            case ast.Assign(targets=targets, value=value):
                return self._only_looks(value) and all(self._bind(target, value) for target in targets)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                harmless = self._only_looks(annotation) and (value is None or self._only_looks(value))
                return harmless and self._bind(target, value)
            case ast.AugAssign(target=target, value=value):  # which changes a dict or a list in place
                return self.full(target) is None and self._only_looks(value) and self._bind(target, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._known[statement.name] = None
                returns = statement.returns is None or self._only_looks(statement.returns)
                return returns and self._only_looks(statement.args) and self._only_decorate(statement.decorator_list)
            case ast.ClassDef():
                self._known[statement.name] = None
                inner = _Names()
                inner._known, inner._has_builtins = dict(self._known), self._has_builtins
                metaclasses = [self.full(keyword.value) for keyword in statement.keywords]
                return (
                    all(self._only_looks(base) and self.full(base) != "type" for base in statement.bases)
                    and set(metaclasses) <= {"abc.ABCMeta"}
                    and self._only_decorate(statement.decorator_list)
                    and all(_is_passive(one) and inner.is_harmless(one) for one in statement.body)
                )
            case ast.Assert(test=test, msg=message):
                return self._only_looks(test) and (message is None or self._only_looks(message))
            case ast.If(test=test, body=body, orelse=orelse):
                return self._only_looks(test) and self.may_be([*body, *orelse])
        return False

    def may_be(self, statements: list[ast.stmt]) -> bool:
        """Return whether statements are harmless that may be run or not; what they name is not known any more."""
        before = dict(self._known)
        harmless = all(self.is_harmless(one) for one in statements)
        self._known = {name: full if before.get(name, "") == full else None for name, full in self._known.items()}
        return harmless

    def _bind(self, target: ast.expr, value: ast.expr | None) -> bool:
        """Take what is assigned to; returns whether that is names alone."""
        if isinstance(target, ast.Tuple | ast.List):
            return all(self._bind(one, None) for one in target.elts)
        if not isinstance(target, ast.Name):
            return False
        known = value is not None and self.full(value)
        self._known[target.id] = known if known and "." in known else None
        return True

    def _only_decorate(self, decorators: list[ast.expr]) -> bool:
        for decorator in decorators:
            arguments: list[ast.AST] = []
            if isinstance(decorator, ast.Call):
                arguments = [*decorator.args, *decorator.keywords]
                decorator = decorator.func
            if self.full(decorator) not in _DECORATORS or not all(map(self._only_looks, arguments)):
                return False
        return True

    def _only_looks(self, node: ast.AST) -> bool:
        """Return whether computing an expression, or a function's defaults, changes nothing."""
        match node:
            case ast.Lambda(args=arguments):
                return self._only_looks(arguments)
            case ast.Call(keywords=keywords) if any(one.arg in ("key", None) for one in keywords):
                return False  # a function that is called
            case ast.Call(func=ast.Attribute(value=ast.Call() | ast.Constant() | ast.JoinedStr(), attr=method)):
                if method not in _LOOKING_METHODS:
                    return False
            case ast.Call(func=function):
                if self.full(function) not in _LOOKING:
                    return False
            case ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return False
        return all(self._only_looks(inner) for inner in ast.iter_child_nodes(node))
