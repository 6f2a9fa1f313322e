"""Find the modules of the user's project that a function needs. These modules are copied to the hosts.

A module belongs to the project unless its file is in the standard library or in a folder ``site-packages``. The modules
in these two places are not copied, because they are installed on the hosts.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import pickletools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

#: fleetfit's own packages, which the hosts have.
_OURS = frozenset({"container", "estimators", "fleetfit"})
#: Names of folders with installed packages.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def travels(function: Callable[..., Any]) -> bool:
    """Return whether a function must be packed with its code, because the hosts cannot import it by its name.

    This is true for functions of ``__main__``, and for functions that their module does not contain under their name.
    Any other function is packed as two names: the name of its module and the name of the function.
    """
    module = sys.modules.get(function.__module__ or "")
    if function.__module__ in (None, "__main__") or module is None:
        return True
    if not hasattr(function, "__qualname__"):  # a `functools.partial` with a cache
        return True
    found: Any = module
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not function


def project_modules(packed: bytes, codes: Iterable[types.CodeType]) -> dict[str, Path]:
    """Return the files and folders of the project that a function needs.

    Each key of the result is the name of a file or folder at the top of the job's code. The value is the path of this
    file or folder on this machine.

    Args:
        packed: The pickled function. The pickle names the modules that unpickling imports.
        codes: The code objects that are packed with the function. Their code is searched for more imports.
    """
    found: dict[str, Path] = {}
    waiting = sorted({*_named(packed), *(name for code in codes for name in _imports_of(code))})
    while waiting:
        name = waiting.pop().partition(".")[0]
        if name in found:
            continue
        path = _place(name)
        if path is None:
            continue
        found[name] = path
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            waiting += _imported_in(file)
    return {path.name if path.is_file() else name: path for name, path in found.items()}


def _named(packed: bytes) -> set[str]:
    """Return the names of modules that a pickle may import.

    Every text in the pickle that is the name of a loaded module is returned.
    """
    texts = {argument for _, argument, _ in pickletools.genops(packed) if isinstance(argument, str)}
    return {text for text in texts if text in sys.modules}


def _imports_of(code: types.CodeType) -> Iterator[str]:
    for each in nested(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname == "IMPORT_NAME" and instruction.argval:
                yield str(instruction.argval)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object, and the code objects of the functions, classes and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def _imported_in(file: Path) -> frozenset[str]:
    try:
        about = file.stat()
    except OSError:  # the host reports the error if it imports the file
        return frozenset()
    return _imported_by_file(file, about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=10_000)
def _imported_by_file(file: Path, _mtime_ns: int, _size: int) -> frozenset[str]:
    """Return the modules that a file imports. The result is cached until the file changes."""
    if file.suffix != ".py":
        return frozenset()
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the host reports the error if it imports the file
        return frozenset()
    found = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return frozenset(found)


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and their nested statements.

    Unlike :func:`ast.walk`, this function skips expressions. This saves time, because most nodes are expressions.
    """
    for node in body:
        yield node
        for part in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, ()))


def _place(name: str) -> Path | None:
    """Return the file or folder of a top-level module of the project, or None for any other module."""
    if name in sys.stdlib_module_names or name in _OURS or name == "__main__":
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the module was created at run time
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    path = Path(places[0])
    if not path.is_absolute() or not path.exists() or _INSTALLED & set(path.parts):
        return None
    inside = any(path.is_relative_to(Path(base) / "lib") for base in {sys.prefix, sys.base_prefix})
    return None if inside else path
