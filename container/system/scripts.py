"""Python scripts that are run in a process of another program's, as ``python SCRIPT`` would run them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any


def become(command: Sequence[str], script: str, begin: Mapping[str, Any]) -> dict[str, Any]:
    """Make this process what the interpreter has made of it when it is about to run a script, but for ``sys.path``.

    Args:
        command: The interpreter, its options, the script and its arguments.
        script: The script's path.
        begin: The names that the interpreter has given the ``__main__`` that runs now.

    Returns:
        The names of the script's ``__main__``, to run it with.
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
    """Have the exception hook leave out the frame of the importer's own program."""
    excepthook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = trace and trace.tb_next
        excepthook(kind, error, error.__traceback__)

    sys.excepthook = hook
