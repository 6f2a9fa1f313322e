"""Imports that are under way, as others are told of them."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Seconds between two that are told.
_EVERY_S = 1.0


class Importing:
    """Notes the modules that are looked for within a block, and tells now and then that imports go on.

    It stands first in ``sys.meta_path`` and finds nothing.

    Args:
        tell: Called with a module's name. A name that is looked for again is no progress.

    Attributes:
        names: The modules and packages that were looked for.
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
        """Note that a module is looked for."""
        if name not in self.names and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            self._tell(name)
        self.names.add(name)
