"""Decide which files of the user's source folder are left out of a job's code, by the rules of ignore files.

If the folder contains a file ``.fleetfitignore``, only this file is read. It has the format of ``.gitignore``.
Otherwise, the ``.gitignore`` files are read as git reads them: in the folder, in its subfolders, and in the folders
above it up to the top of the repository.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from container.contract.frozen import dataclass
from estimators.job.errors import ConfigurationError

OWN = ".fleetfitignore"
GITS = ".gitignore"

#: Names of files that are left out by default, because they may contain secrets. Such a file is included if an ignore
#: file includes it by name (``!.env``), or if ``dependencies`` names it.
NEVER = frozenset({".env"})


@dataclass(frozen=True)
class _Rule:
    """A line of an ignore file.

    Attributes:
        ignores: True if the line leaves out the matching paths. False if the line includes the matching paths again.
        regex: The pattern as a regular expression of the package pathspec. It also matches everything in a matching
            folder.
        last: The last component of the pattern, such as ``.env`` for ``!config/.env``.
    """

    ignores: bool
    regex: re.Pattern[str]
    last: str

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches the path itself. A match of only a folder above the path does not count.

        The caller does not search a folder that is left out. Therefore no pattern has to match the folder's contents.
        """
        match = self.regex.match(path)
        if match is None:
            return False
        if "ps_d" in self.regex.groupindex:
            return match["ps_d"] is None or match.end("ps_d") == len(path)
        return not self.regex.pattern.endswith("/") or match.end() < len(path)  # `a/**` matches only the contents of a


class Ignored:
    """The rules that decide which files below a folder are left out.

    Args:
        root: The folder, without symbolic links in its path.
        kept: Files that are never left out, such as the entry point.

    Raises:
        ConfigurationError: an ignore file cannot be read. The methods raise the same error.
    """

    def __init__(self, root: str, kept: Iterable[str] = ()) -> None:
        self._kept = frozenset(kept)
        self._root = root
        #: The name of the ignore files that apply: ``.fleetfitignore`` or ``.gitignore``.
        self.file = OWN if os.path.isfile(os.path.join(root, OWN)) else GITS
        self._rules: dict[str, list[_Rule]] = {}
        #: Folders that are left out, but contain files from `kept`. Only these files are included.
        self._entered: set[str] = set()
        self._above = [] if self.file == OWN else self._of_repository()

    def _of_repository(self) -> list[str]:
        """Return the folders above the root whose ignore files apply. The nearest folder is first.

        A folder whose ignore file leaves out the whole root is not returned.
        """
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
            path: A path below the root. The caller has checked that no folder of the path is left out.
            is_folder: Whether the path is a folder.
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
        """Return whether a path below the root is left out, or is inside of a folder that is left out."""
        parts = os.path.relpath(path, self._root).split(os.sep)
        places = [os.path.join(self._root, *parts[: number + 1]) for number in range(len(parts))]
        return any(self.leaves_out(place, is_folder=os.path.isdir(place)) for place in places)

    def _folders(self, path: str) -> list[str]:
        """Return the folders whose ignore files apply to a path. The nearest folder is first."""
        if self.file == OWN:
            return [self._root]
        found = []
        folder = path
        while folder != self._root:
            folder = os.path.dirname(folder)
            found.append(folder)
        return [*found, *self._above]

    def _rule(self, folder: str, path: str, *, is_folder: bool) -> _Rule | None:
        """Return the rule in a folder's ignore file that applies to a path, or None if no rule matches the path.

        If several rules match, the last rule applies.
        """
        if folder not in self._rules:
            self._rules[folder] = _read(os.path.join(folder, self.file))
        relative = os.path.relpath(path, folder) + ("/" if is_folder else "")
        return next((rule for rule in reversed(self._rules[folder]) if rule.matches(relative)), None)


def _read(path: str) -> list[_Rule]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return []
    except OSError:  # the file does not exist, or is a dangling link
        return []
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            text = file.read()
    except OSError as error:
        raise ConfigurationError(f"source_dir: {path} cannot be read: {error.strerror}.") from error
    from pathspec import GitIgnoreSpec  # the import takes time, and most folders have no ignore file

    rules = []
    for line in text.split("\n"):
        try:
            patterns = GitIgnoreSpec.from_lines([line.rstrip("\r")], backend="simple").patterns
        except (ValueError, re.error):  # git ignores such a line, too
            continue
        last = line.strip().rstrip("/").rpartition("/")[2].lstrip("!")
        for each in patterns:
            if each.include is not None and each.regex is not None:
                rules.append(_Rule(each.include, each.regex, last))
    return rules
