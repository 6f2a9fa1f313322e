"""Read those parts of a ``requirements.txt`` that are needed to cache and install the file's packages. pip reads the
rest.

Format: "Requirements File Format" of pip's documentation.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from pathlib import Path

from container.contract.frozen import dataclass
from container.system.locations import LocationError, local_path

_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_INCLUDE = re.compile(r"^(?:-r|-c|--requirement|--constraint)(?:\s*=\s*|\s+|(?=[^\s=-]))(.+)$")
_EDITABLE = re.compile(r"^(?:-e|--editable)(?:\s*=\s*|\s+)(.+)$")
_FIND_LINKS = re.compile(r"^(-f|--find-links)(?:\s*=\s*|\s+)(.+)$")
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tgz", ".tar.bz2")


@dataclass(frozen=True)
class Requirements:
    """A requirements file, and the files that it includes.

    Attributes:
        contents: The relative path and the content of each file, in the order of reading.
        options: The lines that apply to the whole run of pip, such as ``--index-url``. Local folders are absolute
            paths.
        local: The files and folders on this machine that are to be installed.
        count: The number of requirements.
        hashed: Whether any requirement has a hash.
    """

    contents: tuple[tuple[str, bytes], ...]
    options: tuple[str, ...]
    local: tuple[Path, ...]
    count: int
    hashed: bool


#: A requirement from a git repository: its address, with a branch, a tag or a commit.
_GIT = re.compile(r"git\+([^\s;#]+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def branches(wanted: Requirements) -> list[tuple[str, str]]:
    """Return the git repositories for which the requirements name a branch, a tag or nothing instead of a commit.

    Returns:
        For each repository: the URL, and the branch or tag, or ``HEAD`` if the requirement names none.
    """
    found = []
    for _, content in wanted.contents:
        for line in _lines(content):
            for address in _GIT.findall(line):
                scheme, separator, rest = address.partition("://")
                host, slash, path = rest.partition("/")
                path, _, ref = path.rpartition("@") if "@" in path else (path, "", "")
                if not _COMMIT.fullmatch(ref):
                    found.append((f"{scheme}{separator}{host}{slash}{path}", ref or "HEAD"))
    return found


def dependencies_of(pyproject: Path) -> list[str]:
    """Return the dependencies that a ``pyproject.toml`` names. Return an empty list if the file cannot be read."""
    name = "tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli"
    try:
        content = importlib.import_module(name).loads(pyproject.read_text(encoding="utf-8"))
    except (OSError, ValueError, ImportError):
        return []
    project = content.get("project")
    named = project.get("dependencies") if isinstance(project, dict) else None
    return [text for text in named if isinstance(text, str)] if isinstance(named, list) else []


def read(file: Path) -> Requirements:
    """Read a requirements file and the files that it includes. Each file is read once.

    Args:
        file: The requirements file. Relative paths of local packages refer to its folder, which is pip's working
            directory.

    Raises:
        OSError: a file cannot be read. ``filename`` names the file.
    """
    contents: list[tuple[str, bytes]] = []
    options: list[str] = []
    local: list[Path] = []
    count = 0
    hashed = False
    waiting = [os.path.abspath(file)]
    seen: set[str] = set()
    root = os.path.dirname(os.path.abspath(file))
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        content = Path(path).read_bytes()
        contents.append((os.path.relpath(path, root), content))
        folder = os.path.dirname(path)
        for line in _lines(content):
            if match := _INCLUDE.match(line):
                name = match[1].strip("'\"")
                if "://" not in name or name.startswith("file://"):
                    waiting.append(os.path.join(folder, name.removeprefix("file://")))
            elif match := _FIND_LINKS.match(line):
                options.append(f"{match[1]} {_absolute(match[2], folder)}")
            elif line.startswith("-") and not _EDITABLE.match(line):
                options.append(line)
            else:
                count += 1
                hashed = hashed or "--hash" in line
                if found := _local(line, root):
                    local.append(found)
    return Requirements(tuple(contents), tuple(options), tuple(local), count, hashed)


def _lines(content: bytes) -> list[str]:
    text = _CONTINUED.sub("", content.decode("utf-8-sig", "replace"))
    return [line for line in (_COMMENT.sub("", line).strip() for line in text.splitlines()) if line]


def _absolute(place: str, folder: str) -> str:
    """Return the value of a ``--find-links`` option. A path that exists in the requirements file's folder becomes
    absolute.

    A path with a space is quoted, because pip parses options like a shell.
    """
    try:
        (name,) = shlex.split(place)
    except ValueError:
        return place  # pip will report the error
    path = os.path.join(folder, name)
    return shlex.quote(path) if os.path.exists(path) else place


def _local(line: str, root: str) -> Path | None:
    """Return the local file or folder that a requirement names. Return None for a package from an index or a URL.

    Args:
        line: The line of the requirements file.
        root: The folder to which relative paths refer.
    """
    if match := _EDITABLE.match(line):
        line = match[1]
    text = line.partition(";")[0].partition(" --hash")[0].strip().strip("'\"")
    if " @ " in text:
        text = text.partition(" @ ")[2].strip()
    text = text.partition("#")[0]
    if text.startswith("file://"):
        try:
            return local_path(text)
        except LocationError:
            return None  # pip will report the error
    if "://" in text:
        return None
    text = re.sub(r"\[[^\]]*\]$", "", text.removeprefix("file:"))  # the requirement's extras
    path = Path(root, text)
    return path if ("/" in text or text.endswith((".", *_ARCHIVES))) and path.exists() else None
