"""What a folder of code leaves out of a job: what its ``.fleetfitignore`` names, or else what git would ignore.

``.fleetfitignore`` has git's own form, and counts alone where it lies at the top of the folder. Without it the
``.gitignore`` files count as they do for git: those in the folder, and those above it up to the top of its repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN = ".fleetfitignore"
GITS = ".gitignore"

#: What is a job's only where the folder's ignore file says so (``!.env``), or ``dependencies`` name it: secrets.
NEVER = frozenset({".env"})


class Ignored:
    """What is left out below one folder.

    Args:
        root: The folder, without links in its path.
        kept: Files that are taken whatever is said of them: the entry point.

    Raises:
        OSError: an ignore file cannot be read.
        ValueError: one is not of git's form.
    """

    def __init__(self, root: str, kept: Iterable[str] = ()) -> None:
        self._kept = frozenset(kept)
        self._root = root
        #: The name of the files that say what is left out.
        self.file = OWN if os.path.isfile(os.path.join(root, OWN)) else GITS
        self._rules: dict[str, GitIgnoreSpec | None] = {}
        self._above = [] if self.file == OWN else self._of_repository()

    def _of_repository(self) -> list[str]:
        """Return the folders above whose files count, the nearest first; none that leave out this one as a whole."""
        found = []
        folder = self._root
        while not os.path.exists(os.path.join(folder, ".git")):
            parent = os.path.dirname(folder)
            if parent == folder:
                return []
            folder = parent
            found.append(folder)
        return [folder for folder in found if not self._says(folder, self._root, is_folder=True)]

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a file or a folder is left out.

        Args:
            path: Where it is, below the root, in no folder that is left out.
            is_folder: Which of the two it is.
        """
        if path in self._kept or (is_folder and any(kept.startswith(f"{path}/") for kept in self._kept)):
            return False
        folders = self._above if self.file == GITS else []
        folder = os.path.dirname(path)
        inner = [self._root]
        if self.file == GITS:
            while folder != self._root:
                inner.insert(-1, folder)
                folder = os.path.dirname(folder)
        for each in (*inner, *folders):
            said = self._says(each, path, is_folder=is_folder)
            if said is not None:
                return said
        return os.path.basename(path) in NEVER

    def _says(self, folder: str, path: str, *, is_folder: bool) -> bool | None:
        """Return what a folder's ignore file says of a path; None for nothing."""
        if folder not in self._rules:
            self._rules[folder] = _read(os.path.join(folder, self.file))
        rules = self._rules[folder]
        if rules is None:
            return None
        relative = os.path.relpath(path, folder) + ("/" if is_folder else "")
        return rules.check_file(relative).include


def _read(path: str) -> GitIgnoreSpec | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return None
    from pathspec import GitIgnoreSpec  # it takes a while, and most folders have no such file

    return GitIgnoreSpec.from_lines(lines)
