"""The user's code: what an entry point, a source folder and dependencies mean, and the snapshot that a job runs.

What is an entry point follows SageMaker's training toolkit (``_entry_point_type.py``): ``x.sh`` runs in a shell, in a
folder with a ``setup.py`` everything else is a module (``python -m``), ``x.py`` is a script, and any other file is a
command. Modules can also be named without a ``setup.py``: ``pkg.module``, or a folder with a ``__main__.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from container.contract.names import nearest
from container.toolkit.code import code
from estimators.client import ignoring
from estimators.job.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from estimators.client.functions.packing import Packed

#: Never part of a job's code.
SKIPPED = frozenset({".git", "__pycache__", ".ipynb_checkpoints", ".venv"})

#: Sources above this size are warned about, in bytes: each job keeps its own copy.
LARGE_BYTES = 200_000_000
LARGE_FILES = 20_000

#: Larger files are no code, in bytes.
_LARGEST_TEXT = 4_000_000
#: How names of files end that hold others.
_PACKED = (".whl", ".zip", ".egg", ".tar", ".gz", ".tgz", ".bz2", ".xz")

#: So many of what is left out are named.
_MOST_NAMED = 8

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing to copy.

    Attributes:
        name: Its path in the snapshot.
        origin: Where it is now; None for a link, which has a target instead.
        size: Bytes.
        executable: Whether it may be executed.
        link: Where a link that stays inside of the source leads, relative to its folder.
        content: What a file holds that is made for the job, and has no origin.
    """

    name: str
    origin: str | None
    size: int = 0
    executable: bool = False
    link: str | None = None
    content: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Listing:
    """Everything that a snapshot will hold.

    Attributes:
        entries: Files and links.
        folders: Folders, each after those that hold it.
        left_out: What cannot be part of it, as texts for a warning: links that lead nowhere, sockets.
        ignored: What an ignore file leaves out: the file's name -> paths, folders with a slash at the end.
    """

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    ignored: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def top(self) -> frozenset[str]:
        """The names at the top."""
        names = (*self.folders, *(entry.name for entry in self.entries))
        return frozenset(name.split("/", 1)[0] for name in names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The code of a job; make one with :func:`resolve`.

    Attributes:
        program: The entry point as the toolkit is told: ``train.py``, ``train.sh``, ``pkg.module``.
        roots: ``(name in the snapshot, path)``; the name is empty for a folder whose content is taken.
        without: Folders that are never entered: the one that holds job records, should it lie in the source.
        made: Files that are made for the job: path -> content.
        kept: Files that are taken whatever an ignore file says: the entry point.
        taken: What the snapshot will hold, where that has been read already.
    """

    program: str
    roots: tuple[tuple[str, Path], ...]
    without: tuple[str, ...] = ()
    made: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    kept: tuple[str, ...] = ()
    taken: Listing | None = None

    @functools.cached_property
    def listing(self) -> Listing:
        """What the snapshot will hold, read once.

        Raises:
            ConfigurationError: something cannot be part of a job's code; the message names it.
        """
        if self.taken is not None:
            return self.taken
        found = _list(self.roots, frozenset(self.without), self.kept)
        folders = {parent.as_posix() for name in self.made for parent in PurePosixPath(name).parents} - {"."}
        entries = (Entry(name, None, len(content), content=content) for name, content in self.made.items())
        return dataclasses.replace(
            found, entries=(*found.entries, *entries), folders=(*found.folders, *sorted(folders - set(found.folders)))
        )

    def warnings(self) -> list[str]:
        """Return what the user should know: a large source, what was left out and may be missed."""
        listing = self.listing
        found = [f"source_dir: {text}." for text in listing.left_out]
        found += self._missed()
        if listing.size > LARGE_BYTES or len(listing.entries) > LARGE_FILES:
            largest = ", ".join(f"{name} ({size / 1e6:.0f} MB)" for name, size in self._largest())
            found.append(
                f"the source has {len(listing.entries)} files, {listing.size / 1e6:.0f} MB in total, and each job "
                f"keeps a copy. The largest: {largest}. Pass data as a channel, or use a smaller source_dir."
            )
        return found

    def _missed(self) -> Iterator[str]:
        """Yield what is said of files that were left out, and are likely to be missed."""
        for file, names in self.listing.ignored.items():
            for name in names:
                if name.rpartition("/")[2] in ignoring.NEVER:
                    yield (
                        f"source_dir: {name} is not part of the job's code, because the file may contain secrets. Pass "
                        f"secrets in the job's environment. To include the file, add the line `!{name}` to "
                        f"{ignoring.OWN} in source_dir."
                    )
            modules = [name for name in names if name.endswith((".py", "requirements.txt"))]
            if modules:
                are = "is" if len(modules) == 1 else "are"
                yield (
                    f"source_dir: {_some(modules)} {are} not part of the job's code, because of {file}. To change "
                    f"this, edit or create the file {ignoring.OWN} in source_dir: this file replaces .gitignore files."
                )

    def notes(self) -> list[str]:
        """Return what ignore files leave out, a text for each."""
        ignored = self.listing.ignored.items()
        return [f"left out of the job's code by {file}: {_some(names)}" for file, names in ignored]

    def _largest(self) -> list[tuple[str, int]]:
        sizes: dict[str, int] = {}
        for entry in self.listing.entries:
            top = entry.name.split("/", 1)[0]
            sizes[top] = sizes.get(top, 0) + entry.size
        return sorted(sizes.items(), key=lambda item: -item[1])[:3]

    def names(self, pattern: re.Pattern[bytes], *, packed: bool = True) -> bool:
        """Return whether a file of it may hold what a pattern finds.

        Args:
            pattern: What is looked for.
            packed: What is said of a file that is packed, such as a wheel: it may hold anything.
        """
        for entry in self.listing.entries:
            if entry.content is not None and entry.name == self.program:
                continue  # our own, which runs a function; that is a file beside it
            if entry.name.endswith(_PACKED):
                if packed:
                    return True
                continue
            if entry.content is not None:
                content = entry.content
            elif entry.origin is None or entry.size > _LARGEST_TEXT:
                continue
            else:
                try:
                    content = Path(entry.origin).read_bytes()
                except OSError:  # whoever copies it says so
                    continue
            if pattern.search(content):
                return True
        return False

    def text_of(self, name: str) -> bytes:
        """Return what a file holds; nothing where there is none, or it cannot be read."""
        for entry in self.listing.entries:
            if entry.name == name and entry.origin is not None and entry.size <= _LARGEST_TEXT:
                with contextlib.suppress(OSError):  # whoever copies it says so
                    return Path(entry.origin).read_bytes()
        return b""

    def entry_text(self) -> bytes:
        """Return the text of the entry point, a script of Python's or a module; nothing of any other."""
        if self.program.endswith(".py"):
            return self.text_of(self.program)
        module = self.program.replace(".", "/")
        return self.text_of(f"{module}.py") or self.text_of(f"{module}/__main__.py")

    def found(self) -> Source:
        """Return the part of it that lies on this machine's disk: all but what is made for the job."""
        entries = tuple(entry for entry in self.listing.entries if entry.content is None)
        return dataclasses.replace(self, taken=dataclasses.replace(self.listing, entries=entries), made={})

    def from_copy(self, folder: str | Path) -> Source:
        """Return the same code with its files read from a copy that :meth:`copy_to` made of :meth:`found`."""
        entries = tuple(
            entry if entry.origin is None else dataclasses.replace(entry, origin=os.path.join(folder, entry.name))
            for entry in self.listing.entries
        )
        return dataclasses.replace(self, taken=dataclasses.replace(self.listing, entries=entries))

    def copy_to(self, target: str | Path) -> None:
        """Copy the source into a folder, which is made if it does not exist.

        Modes are the user's only (0600, 0700), but for the permission to execute. Links that stay inside stay links.

        Raises:
            ConfigurationError: something cannot be read, or vanished meanwhile.
            OSError: the target cannot be written.
        """
        base = os.fspath(target)
        os.makedirs(base, mode=0o700, exist_ok=True)
        for folder in self.listing.folders:
            os.makedirs(os.path.join(base, folder), mode=0o700, exist_ok=True)
        for entry in self.listing.entries:
            place = os.path.join(base, entry.name)
            if entry.link is not None:
                os.symlink(entry.link, place)
            else:
                _copy(entry, place)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def resolve_function(
    packed: Packed,
    source_dir: str | None = None,
    dependencies: tuple[str, ...] = (),
    *,
    without: tuple[str | os.PathLike[str], ...] = (),
) -> Source:
    """Return the code of a job that runs a function: its files, and the modules of the project that it needs.

    Args:
        packed: The function.
        source_dir: A folder of which all is taken as well: modules that only ``importlib`` finds, a requirements.txt.
        dependencies: As for :func:`resolve`.
        without: As for :func:`resolve`.

    Raises:
        ConfigurationError: as for :func:`resolve`.
    """
    roots = [("", _folder(_plain("source_dir", source_dir)))] if source_dir is not None else []
    for name, path in packed.modules.items():
        if not any(_has(root, name) for _, root in roots):
            roots.append((name, path))
    _add_dependencies(roots, dependencies)
    _refuse_reserved(roots)
    return Source(
        program=packed.program,
        roots=tuple(roots),
        without=tuple(os.path.realpath(path) for path in without),
        made=packed.files,
    )


def resolve(
    entry_point: str | None,
    source_dir: str | None = None,
    dependencies: tuple[str, ...] = (),
    *,
    without: tuple[str | os.PathLike[str], ...] = (),
) -> Source:
    """Find the user's code and check it.

    Args:
        entry_point: A file (relative to ``source_dir`` where that is given), a module, or a folder with a
            ``__main__.py``.
        source_dir: A folder: all of it is taken. Without it, only the entry point is.
        dependencies: Files and folders that are put beside the entry point.
        without: Folders that are never entered.

    Raises:
        ConfigurationError: something is missing, outside of ``source_dir``, or hides our own packages.
        UnsupportedError: the source is on S3.
    """
    if entry_point is None or not str(entry_point):
        raise ConfigurationError("entry_point is missing: give the script that trains, e.g. entry_point='train.py'.")
    entry = _plain("entry_point", entry_point)
    if source_dir is None:
        program, root = _alone(entry)
        roots = [root]
    else:
        folder = _folder(_plain("source_dir", source_dir))
        program = _within(entry, folder)
        roots = [("", folder)]
    _add_dependencies(roots, dependencies)
    _refuse_reserved(roots)
    return Source(
        program=program,
        roots=tuple(roots),
        without=tuple(os.path.realpath(path) for path in without),
        kept=tuple(_files_of(program, *roots[0])),
    )


def _files_of(program: str, name: str, root: Path) -> Iterator[str]:
    """Yield the files that an entry point may be, where they are and, if links lead there, where these lead."""
    base = os.path.realpath(root.parent if name else root)
    module = program.replace(".", "/")
    packages = [parent.as_posix() for parent in PurePosixPath(module).parents if parent.as_posix() != "."]
    names = [program, f"{module}.py", f"{module}/__main__.py", *(f"{each}/__init__.py" for each in (module, *packages))]
    for each in names:
        path = os.path.join(base, os.path.normpath(each))
        if os.path.isfile(path):
            yield from {path, os.path.realpath(path)}


def _add_dependencies(roots: list[tuple[str, Path]], dependencies: tuple[str, ...]) -> None:
    for dependency in dependencies:
        path = Path(os.path.abspath(_plain("dependencies", dependency)))
        if not path.exists():
            raise ConfigurationError(f"dependencies: {str(dependency)!r} does not exist ({path}).{_near(path)}")
        if any(name == path.name or (not name and _has(root, path.name)) for name, root in roots):
            raise ConfigurationError(
                f"dependencies: {str(dependency)!r} would overwrite {path.name!r} of the source. Rename one of the two."
            )
        roots.append((path.name, path))


def _has(root: Path, name: str) -> bool:
    """Return whether a folder has something of a name that is part of the job's code."""
    real = os.path.realpath(root)
    path = os.path.join(real, name)
    return os.path.lexists(path) and not _left_out(_rules(real, ()), path, is_folder=os.path.isdir(path))


def _left_out(rules: ignoring.Ignored, path: str, *, is_folder: bool) -> bool:
    try:
        return rules.leaves_out(path, is_folder=is_folder)
    except OSError as error:
        raise ConfigurationError(f"source_dir: {error.filename} cannot be read: {error.strerror}.") from error


def _plain(argument: str, location: str | os.PathLike[str]) -> str:
    text = os.fspath(location)
    if text.startswith("s3://"):
        raise UnsupportedError(f"{argument}={text!r}: only jobs on SageMaker can use code on S3. Give a local path.")
    if text.startswith("file://"):
        text = text[len("file://") :]
    return os.path.expanduser(text)


def _folder(source_dir: str) -> Path:
    path = Path(os.path.abspath(source_dir))
    if not path.exists():
        raise ConfigurationError(f"source_dir {source_dir!r} does not exist ({path}).{_near(path)}")
    if not path.is_dir():
        raise ConfigurationError(
            f"source_dir {source_dir!r} is not a folder. For a single file, give entry_point only."
        )
    return path


def _alone(entry: str) -> tuple[str, tuple[str, Path]]:
    """Return the program and the root of an entry point without a source folder: it alone is taken."""
    path = Path(os.path.abspath(entry))
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise ConfigurationError(
                f"entry_point {entry!r} is a folder without a __main__.py. Set entry_point to a script in that folder: "
                f"source_dir={entry!r}, entry_point='train.py'."
            )
        if not _MODULE.fullmatch(path.name):
            raise ConfigurationError(f"entry_point {entry!r}: the folder's name is not a valid Python package name.")
        return path.name, (path.name, path)
    if not path.exists():
        hint = _near(path)
        if _MODULE.fullmatch(entry) and not hint:
            hint = " A module needs source_dir, the folder that contains the module."
        raise ConfigurationError(f"entry_point {entry!r} does not exist ({path}).{hint}")
    _check_program(path, path.name, has_setup=False)
    return path.name, (path.name, path)


def _within(entry: str, folder: Path) -> str:
    """Return the program for an entry point in a source folder."""
    relative = os.path.relpath(entry, folder) if os.path.isabs(entry) else os.path.normpath(entry)
    path = folder / relative
    if relative == os.pardir or relative.startswith(os.pardir + os.sep):
        raise ConfigurationError(
            f"entry_point {entry!r} is outside of source_dir {str(folder)!r}: give a path inside source_dir, relative "
            "to that folder."
        )
    if path.is_file():
        _check_program(path, relative, has_setup=(folder / "setup.py").is_file())
        return relative
    module = relative.replace(os.sep, ".") if path.is_dir() else relative
    if _MODULE.fullmatch(module) and _is_module(folder, module):
        return module
    if path.is_dir():
        raise ConfigurationError(
            f"entry_point {entry!r} is a folder without a __main__.py. Set entry_point to a script in that folder."
        )
    doubled = Path(os.path.abspath(entry))
    if doubled.is_file() and doubled.is_relative_to(folder):
        hint = f" Give the path relative to source_dir: entry_point={str(doubled.relative_to(folder))!r}."
    else:
        hint = _near(path)
    raise ConfigurationError(f"entry_point {entry!r} does not exist in source_dir {str(folder)!r}.{hint}")


def _is_module(folder: Path, module: str) -> bool:
    path = folder.joinpath(*module.split("."))
    return path.with_name(path.name + ".py").is_file() or (path / "__main__.py").is_file()


def _check_program(path: Path, name: str, *, has_setup: bool) -> None:
    """Refuse a file that nothing would run."""
    if name.endswith((".py", ".sh")) or has_setup:
        return
    with open(path, "rb") as file:
        is_script = file.read(2) == b"#!"
    if not is_script and not os.access(path, os.X_OK):
        raise ConfigurationError(
            f"entry_point {name!r} is neither a Python script (.py), a shell script (.sh), a module nor an executable "
            "file."
        )


def _refuse_reserved(roots: list[tuple[str, Path]]) -> None:
    try:
        for name, path in roots:
            code.check_names([path] if name else path.iterdir())
    except code.CodeError as error:
        raise ConfigurationError(str(error)) from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from error


def _near(path: Path) -> str:
    """Return the most similar name in the folder of a path that does not exist."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return f" There is no folder {str(path.parent)!r}."
    guess = nearest(path.name, names)
    return f" Did you mean {guess!r}?" if guess is not None else ""


# --- listing and copying ---


def _list(roots: tuple[tuple[str, Path], ...], without: frozenset[str], kept: tuple[str, ...]) -> Listing:
    entries: list[Entry] = []
    folders: list[str] = []
    left_out: list[str] = []
    ignored: dict[str, list[str]] = {}
    for name, path in roots:
        real = os.path.realpath(path)
        if os.path.isdir(real):
            if name:
                folders.append(name)
            rules = _rules(real, kept)
            taken = ignored.setdefault(rules.file, [])
            for item in _walk(real, name, real, (real,), without, left_out, rules, taken):
                if isinstance(item, str):
                    folders.append(item)
                else:
                    entries.append(item)
        else:
            entries.append(_file(real, name, os.stat(real)))
    found = {file: tuple(names) for file, names in ignored.items() if names}
    return Listing(tuple(entries), tuple(folders), tuple(left_out), found)


def _rules(folder: str, kept: tuple[str, ...]) -> ignoring.Ignored:
    try:
        return ignoring.Ignored(folder, kept)
    except OSError as error:
        raise ConfigurationError(f"source_dir: {error.filename} cannot be read: {error.strerror}.") from error


def _walk(
    folder: str,
    prefix: str,
    root: str,
    above: tuple[str, ...],
    without: frozenset[str],
    left_out: list[str],
    rules: ignoring.Ignored,
    ignored: list[str],
) -> Iterator[str | Entry]:
    """Yield the entries below a folder; a text is a folder.

    Args:
        folder: The folder, without links in its path.
        prefix: Its name in the snapshot.
        root: Links that stay in it stay links.
        above: The folders that are being listed, ``folder`` the last.
        without: Folders that are not entered.
        left_out: Takes what is left out, as texts.
        rules: What ignore files say of what is below the root.
        ignored: Takes what they leave out.
    """
    try:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name)
    except OSError as error:
        raise ConfigurationError(f"source_dir: {folder} cannot be read: {error.strerror}.") from error
    for item in items:
        if item.name in SKIPPED:
            continue
        name = f"{prefix}/{item.name}" if prefix else item.name
        path = item.path
        is_folder = item.is_dir(follow_symlinks=False)
        if _left_out(rules, path, is_folder=is_folder):
            ignored.append(f"{name}/" if is_folder else name)
            continue
        if item.is_symlink():
            link = _inner_link(path, root)
            if link is not None and rules.leaves_out_anywhere(os.path.realpath(path)):
                left_out.append(f"{path} is left out: it links to {os.readlink(path)}, which {rules.file} leaves out")
                continue
            if link is not None:
                yield Entry(name, None, link=link)
                continue
            target = os.path.realpath(path)
            if not os.path.exists(target):
                left_out.append(f"{path} is left out: it links to {os.readlink(path)}, which does not exist")
                continue
            if target in above or folder.startswith(target.rstrip("/") + "/"):
                raise ConfigurationError(
                    f"source_dir: {path} links to {target}, a folder that contains the link. Remove the link."
                )
            path = target
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue  # it has just gone
        if stat.S_ISDIR(status.st_mode):
            if path in without:
                continue
            yield name
            inner_root = root if path == item.path else path
            inner_rules = rules if inner_root == root else _rules(inner_root, ())
            yield from _walk(path, name, inner_root, (*above, path), without, left_out, inner_rules, ignored)
        elif (kind := _kind(status)) is not None:
            left_out.append(f"{path} is left out: {kind} cannot be part of a job's code")
        else:
            yield _file(path, name, status)


def _kind(status: os.stat_result) -> str | None:
    """Return what is no file is called; None for a file."""
    if stat.S_ISREG(status.st_mode):
        return None
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


def _file(path: str, name: str, status: os.stat_result) -> Entry:
    if (kind := _kind(status)) is not None:
        raise ConfigurationError(f"source_dir: {path} is {kind}, which cannot be part of a job's code. Move it away.")
    if not os.access(path, os.R_OK):
        raise ConfigurationError(f"source_dir: {path} cannot be read: permission denied.")
    return Entry(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _inner_link(path: str, root: str) -> str | None:
    """Return the relative target of a link that stays inside of ``root`` and leads somewhere; None otherwise."""
    target = os.path.realpath(path)
    if not os.path.exists(target) or not target.startswith(root.rstrip("/") + "/"):
        return None
    inside = os.path.relpath(target, root).split(os.sep)
    if any(part in SKIPPED for part in inside):
        return None
    return os.path.relpath(target, os.path.realpath(os.path.dirname(path)))


def _copy(entry: Entry, place: str) -> None:
    if entry.content is not None:
        Path(place).write_bytes(entry.content)
        os.chmod(place, 0o600)
        return
    assert entry.origin is not None  # every other file has one
    try:
        shutil.copyfile(entry.origin, place)
        status = os.stat(entry.origin)
    except FileNotFoundError as error:
        if error.filename != entry.origin:
            raise
        return  # it has gone meanwhile
    except OSError as error:
        if error.filename != entry.origin:
            raise
        raise ConfigurationError(f"source_dir: {entry.origin} cannot be read: {error.strerror}.") from error
    os.chmod(place, 0o700 if entry.executable else 0o600)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
