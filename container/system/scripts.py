"""Run Python scripts in an existing process, as ``python SCRIPT`` would run them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any


def become(command: Sequence[str], script: str) -> dict[str, Any]:
    """Set ``sys.argv`` and ``__main__`` as the interpreter does before it runs a script. ``sys.path`` is not changed.

    Args:
        command: The command line: the interpreter, its options, the script and the script's arguments.
        script: The path of the script.

    Returns:
        The namespace of the new ``__main__`` module, in which the script must be run.
    """
    sys.path_importer_cache.clear()
    sys.orig_argv[:] = command
    names = [os.path.basename(word) for word in command]
    begin = {name: value for name, value in vars(sys.modules["__main__"]).items() if name.startswith("__")}
    sys.argv = list(command[names.index(os.path.basename(script)) :])
    main = sys.modules["__main__"] = ModuleType("__main__")
    loader = SourceFileLoader("__main__", script)
    vars(main).update(begin, __annotations__={}, __doc__=None, __file__=script, __loader__=loader)
    return vars(main)


def hide_first_frame() -> None:
    """Omit the outermost frame from the traceback of an uncaught exception: it belongs to the program that runs the
    script, not to the script.
    """
    excepthook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = trace and trace.tb_next
        excepthook(kind, error, error.__traceback__)

    sys.excepthook = hook
