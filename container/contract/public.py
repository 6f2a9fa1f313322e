"""Import the names of a public module when they are first used, so that importing the public module itself is fast.

The stub file next to a public module lists the module's names, one on each line: ``from MODULE import NAME as NAME``.
Type checkers and editors read the same stub file, so that each name is written only once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def exports(module: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__all__``, ``__getattr__`` and ``__dir__`` of a public module.

    Args:
        module: The module's ``__name__``.
        file: The module's ``__file__``. The stub file is in the same folder.
    """
    with open(file.removesuffix(".py") + ".pyi", encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from ")]
    origins = {words[3]: words[1] for words in imports}  # from MODULE import NAME as NAME

    def get(name: str) -> Any:
        if name not in origins:
            # Python adds "Did you mean" to an uncaught error that has the name and the object.
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
        if origins[name] == module:
            return importlib.import_module(f"{module}.{name}")
        value = getattr(importlib.import_module(origins[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    names = sorted(origins)
    return names, get, lambda: sorted({*vars(sys.modules[module]), *names})
