"""Report the progress of imports."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Seconds between two reports.
_EVERY_S = 1.0


def top_of(statement: str) -> str:
    """Return the top-level package of an import statement."""
    return statement.split()[1].partition(".")[0]


class Importing:
    """Record the modules that are imported within a ``with`` block, and report at most once a second that imports
    proceed.

    The object is inserted as the first finder in ``sys.meta_path``, but never finds a module.

    Args:
        tell: A function that is called with a module's name. A name that is searched for again is not reported.

    Attributes:
        names: The names of the modules and packages that were searched for.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._next = 0.0
        self.names: set[str] = set()

    def __enter__(self) -> Importing:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Record that a module is searched for. Return None, so that the next finder searches for the module."""
        if name not in self.names and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            self._tell(name)
        self.names.add(name)
