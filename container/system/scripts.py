"""Run Python scripts in an existing process, as ``python SCRIPT`` would run them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any


def become(command: Sequence[str], script: str, begin: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare this process as the interpreter does before it runs a script, except for ``sys.path``.

    Args:
        command: The interpreter, its options, the script and its arguments.
        script: The script's path.
        begin: The names that the interpreter defined in the current ``__main__``.

    Returns:
        The namespace of the script's ``__main__``, in which to run the script.
    """
    sys.path_importer_cache.clear()
    sys.orig_argv[:] = command
    names = [os.path.basename(word) for word in command]
    sys.argv = list(command[names.index(os.path.basename(script)) :])
    main = sys.modules["__main__"] = ModuleType("__main__")
    loader = SourceFileLoader("__main__", script)
    vars(main).update(begin, __annotations__={}, __doc__=None, __file__=script, __loader__=loader)
    return vars(main)


def hide_first_frame() -> None:
    """Make the exception hook leave out the frame of the importer's own program."""
    excepthook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = trace and trace.tb_next
        excepthook(kind, error, error.__traceback__)

    sys.excepthook = hook
