"""What a folder of code leaves out of a job: what its ``.fleetfitignore`` names, or else what git would ignore.

``.fleetfitignore`` has git's own form, and counts alone where it lies at the top of the folder. Without it the
``.gitignore`` files count as they do for git: those in the folder, and those above it up to the top of its repository.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Iterable

OWN = ".fleetfitignore"
GITS = ".gitignore"

#: What is a job's only where an ignore file takes it back by its name (``!.env``), or ``dependencies`` name it.
NEVER = frozenset({".env"})


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A line of an ignore file.

    Attributes:
        ignores: Whether it leaves out what it matches, or takes it back.
        regex: pathspec's, which also matches what is below a folder that it names.
        last: The last part of what it names.
    """

    ignores: bool
    regex: re.Pattern[str]
    last: str

    def matches(self, path: str) -> bool:
        """Return whether it names a path itself. As git, we do not look into folders that are left out."""
        match = self.regex.match(path)
        if match is None:
            return False
        if "ps_d" in self.regex.groupindex:
            return match["ps_d"] is None or match.end("ps_d") == len(path)
        return not self.regex.pattern.endswith("/") or match.end() < len(path)  # `a/**` is what is below a


class Ignored:
    """What is left out below one folder.

    Args:
        root: The folder, without links in its path.
        kept: Files that are taken whatever is said of them: the entry point.

    Raises:
        OSError: an ignore file cannot be read; so do the methods.
    """

    def __init__(self, root: str, kept: Iterable[str] = ()) -> None:
        self._kept = frozenset(kept)
        self._root = root
        #: The name of the files that say what is left out.
        self.file = OWN if os.path.isfile(os.path.join(root, OWN)) else GITS
        self._rules: dict[str, list[_Rule]] = {}
        #: Folders that are left out, but for the files in them that are kept.
        self._entered: set[str] = set()
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
        return [folder for folder in found if not self._leaves_out_root(folder)]

    def _leaves_out_root(self, folder: str) -> bool:
        path = self._root
        while path != folder:
            if (rule := self._rule(folder, path, is_folder=True)) is not None and rule.ignores:
                return True
            path = os.path.dirname(path)
        return False

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a file or a folder is left out.

        Args:
            path: Where it is, below the root, in no folder that is left out.
            is_folder: Which of the two it is.
        """
        if path in self._kept:
            return False
        left_out = os.path.dirname(path) in self._entered or self._is_named(path, is_folder=is_folder)
        if left_out and is_folder and any(kept.startswith(f"{path}/") for kept in self._kept):
            self._entered.add(path)
            return False
        return left_out

    def _is_named(self, path: str, *, is_folder: bool) -> bool:
        name = os.path.basename(path)
        for each in self._folders(path):
            rule = self._rule(each, path, is_folder=is_folder)
            if rule is not None and (rule.ignores or name not in NEVER or rule.last == name):
                return rule.ignores
        return name in NEVER

    def leaves_out_anywhere(self, path: str) -> bool:
        """Return whether a path below the root, or a folder that it is in, is left out."""
        parts = os.path.relpath(path, self._root).split(os.sep)
        places = [os.path.join(self._root, *parts[: number + 1]) for number in range(len(parts))]
        return any(self.leaves_out(place, is_folder=os.path.isdir(place)) for place in places)

    def _folders(self, path: str) -> list[str]:
        """Return the folders whose ignore files count for a path, the nearest first."""
        if self.file == OWN:
            return [self._root]
        found = []
        folder = path
        while folder != self._root:
            folder = os.path.dirname(folder)
            found.append(folder)
        return [*found, *self._above]

    def _rule(self, folder: str, path: str, *, is_folder: bool) -> _Rule | None:
        """Return the line of a folder's ignore file that decides for a path: the last that matches."""
        if folder not in self._rules:
            self._rules[folder] = _read(os.path.join(folder, self.file))
        relative = os.path.relpath(path, folder) + ("/" if is_folder else "")
        return next((rule for rule in reversed(self._rules[folder]) if rule.matches(relative)), None)


def _read(path: str) -> list[_Rule]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return []
    except OSError:  # there is none, or a link that leads nowhere
        return []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        text = file.read()
    from pathspec import GitIgnoreSpec  # it takes a while, and most folders have no such file

    rules = []
    for line in text.split("\n"):
        try:
            patterns = GitIgnoreSpec.from_lines([line.rstrip("\r")], backend="simple").patterns
        except (ValueError, re.error):  # git takes no notice of such a line either
            continue
        last = line.strip().rstrip("/").rpartition("/")[2].lstrip("!")
        for each in patterns:
            if each.include is not None and each.regex is not None:
                rules.append(_Rule(each.include, each.regex, last))
    return rules
