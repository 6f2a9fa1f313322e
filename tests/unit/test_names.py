"""Tests, benchmarks, examples, pages, notebooks and the scripts in strings name only what there is.

A renamed class leaves its old name in tests that `make test` does not run, and in scripts in strings.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: An import in a script that is a string, also over several lines in brackets.
IN_TEXT = re.compile(r"^[ \t>.]*from ((?:container|estimators)[.\w]*) import (\([^()]*\)|[\w ,]+)", re.MULTILINE)

#: Scripts that ask for what is not there, on purpose.
MISSPELT = {"estimators.Tensorflow", "estimators.WandbCallback"}


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Every name that a module's statements define at the top, in whichever branch."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            nested = [inner for part in ("body", "orelse", "finalbody") for inner in getattr(node, part, ())]
            yield from defined(nested)
            yield from defined([inner for handler in getattr(node, "handlers", ()) for inner in handler.body])
            if not nested:
                yield from (
                    inner.id
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                )


@functools.cache
def names_of(module: str) -> frozenset[str] | None:
    """What can be imported from a module; None if there is no such module."""
    path = ROOT / module.replace(".", "/")
    files = [one for one in (path / "__init__.py", path.with_suffix(".py")) if one.exists()]
    files += [one for one in (path / "__init__.pyi", path.with_suffix(".pyi")) if one.exists()]
    if not files and not path.is_dir():
        return None
    found = {one.stem for one in path.iterdir()} if path.is_dir() else set()
    for file in files:
        found |= set(defined(ast.parse(file.read_text(encoding="utf-8")).body))
    return frozenset(found)


def missing(module: str, names: Iterator[str] | list[str]) -> list[str]:
    known = names_of(module)
    return [f"{module}.{name}" for name in names if name != "*" and (known is None or name not in known)]


def wrong_names(tree: ast.Module) -> Iterator[str]:
    """The names of ours that a file imports, or takes from a module, and that are not there."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("container", "estimators"):
            assert node.module is not None
            yield from missing(node.module, [alias.name for alias in node.names])
            for alias in node.names:
                if names_of(f"{node.module}.{alias.name}") is not None:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_text(node.value)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            module = modules.get(node.value.id)
            if module is not None and node.value.id not in stored and not node.attr.startswith("__"):
                yield from missing(module, [node.attr])


def in_text(text: str) -> Iterator[str]:
    """The names of ours that a text's import statements ask for, and that are not there."""
    for module, found in IN_TEXT.findall(text):
        words = [one.partition(" as ")[0].strip() for one in found.strip("()").split(",")]
        yield from missing(module, [word for word in words if word.isidentifier()])


def test_all_names_of_ours_are_there() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("tests", "benchmarks", "examples", "entrypoints", "notebooks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in wrong_names(ast.parse(path.read_text(encoding="utf-8")))
        if name not in MISSPELT
    ]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path] = "\n".join("".join(cell["source"]) for cell in cells)
    wrong += [f"{path.relative_to(ROOT)}: {name}" for path, text in texts.items() for name in in_text(text)]
    assert not wrong, "\n".join(wrong)
