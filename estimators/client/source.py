"""Find and check the user's code (entry point, source folder, dependencies), and create the copy that a job runs.

As in SageMaker's training toolkit (``_entry_point_type.py``), the entry point determines how the code runs. ``x.sh``
runs in a shell. If the source folder contains a ``setup.py``, any other entry point is a module (``python -m``).
Without a ``setup.py``, ``x.py`` is a script, and any other file is a command.

Unlike SageMaker's toolkit, fleetfit also accepts modules without a ``setup.py``: ``pkg.module``, or a folder with a
``__main__.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from container.contract.frozen import dataclass
from container.contract.names import listed, nearest_file
from container.toolkit.code import code
from estimators.client import ignoring
from estimators.job.errors import ConfigurationError, UnsupportedError
from estimators.records.record import JobRecord, job_names

if TYPE_CHECKING:
    from estimators.client.functions.packing import Packed

#: Names that are never part of a job's code.
SKIPPED = frozenset({".git", "__pycache__", ".ipynb_checkpoints", ".venv"})

#: Maximum size in bytes and maximum number of files of a source without a warning. Each job keeps a copy of its source.
LARGE_BYTES = 200_000_000
LARGE_FILES = 20_000

#: Maximum number of files of an excluded folder that are searched for modules.
_MOST_SEARCHED = 1000

#: Maximum size in bytes of a file that is searched for names of frameworks. Larger files are data and not code.
_LARGEST_TEXT = 4_000_000
#: Suffixes of archives.
_PACKED = (".whl", ".zip", ".egg", ".tar", ".gz", ".tgz", ".bz2", ".xz")

#: Maximum number of files that a message about excluded files names.
_MOST_NAMED = 8

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class SnapshotEntry:
    """A file or link of a snapshot, the copy of the code that a job keeps.

    Attributes:
        name: The path in the snapshot.
        origin: The path of the original file, or None for a link or a generated file.
        size: The size in bytes.
        executable: Whether the file is executable.
        link: The relative target of a link whose target is inside the source, or None if the entry is a file.
        content: The content of a generated file, or None if the entry is a link or is copied from a file.
    """

    name: str
    origin: str | None
    size: int = 0
    executable: bool = False
    link: str | None = None
    content: bytes | None = None


@dataclass(frozen=True)
class Listing:
    """The content of a snapshot.

    Attributes:
        entries: The files and links.
        folders: The folders. A folder is listed before its subfolders.
        left_out: A sentence for each item that cannot be copied, such as a dangling link or a socket.
            :meth:`Source.warnings` returns these sentences.
        ignored: A mapping from ``.fleetfitignore`` or ``.gitignore`` to the paths that files of this name exclude.
            Paths of folders end in a slash.
    """

    entries: tuple[SnapshotEntry, ...]
    folders: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    ignored: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the total size of all files, in bytes."""
        return sum(entry.size for entry in self.entries)

    @property
    def top(self) -> frozenset[str]:
        """Return the names at the top of the snapshot."""
        names = (*self.folders, *(entry.name for entry in self.entries))
        return frozenset(name.split("/", 1)[0] for name in names)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The code of a job: the entry point, and the files to copy.

    :func:`resolve` and :func:`resolve_function` create objects of this class.

    Attributes:
        program: The entry point, as the container toolkit on the hosts expects it: ``train.py``, ``train.sh`` or
            ``pkg.module``, for example.
        roots: The files and folders to copy, as pairs ``(name in the snapshot, path)``. If the name is empty, the
            content of the folder is copied to the top of the snapshot.
        without: Folders that are never copied, such as the folder of job records.
        made: The generated files, as a mapping from paths to contents.
        kept: The paths of the entry point's files. Ignore files cannot exclude these files.
        taken: The snapshot's content if the folders have already been listed, or None.
    """

    program: str
    roots: tuple[tuple[str, Path], ...]
    without: tuple[str, ...] = ()
    made: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    kept: tuple[str, ...] = ()
    taken: Listing | None = None

    @functools.cached_property
    def listing(self) -> Listing:
        """Return the snapshot's content. The files are listed once, and the result is kept.

        Raises:
            ConfigurationError: a file or folder cannot be part of a job's code. The message names the file or folder.
        """
        if self.taken is not None:
            return self.taken
        found = _list(self.roots, frozenset(self.without), self.kept)
        folders = {parent.as_posix() for name in self.made for parent in PurePosixPath(name).parents} - {"."}
        entries = (SnapshotEntry(name, None, len(content), content=content) for name, content in self.made.items())
        return dataclasses.replace(
            found, entries=(*found.entries, *entries), folders=(*found.folders, *sorted(folders - set(found.folders)))
        )

    def warnings(self) -> list[str]:
        """Return warnings for the user, such as a large source or excluded files that may be needed."""
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
        """Yield a warning for each excluded ``.env`` file, and for the excluded modules and requirements files."""
        for file, names in self.listing.ignored.items():
            for name in names:
                if name.rpartition("/")[2] in ignoring.NEVER:
                    yield (
                        f"source_dir: {name} is not part of the job's code, because the file may contain secrets. Pass "
                        f"secrets in the job's environment. To include the file, add the line `!{name}` to "
                        f"{ignoring.OWN} in source_dir."
                    )
            # A .fleetfitignore is written for jobs, so the folders that it excludes are meant to be excluded.
            modules = [
                name
                for name in names
                if name.endswith((".py", "requirements.txt")) or (file == ignoring.GITS and self._has_modules(name))
            ]
            if modules:
                are = "is" if len(modules) == 1 else "are"
                yield (
                    f"source_dir: {listed(modules, _MOST_NAMED)} {are} not part of the job's code, because of {file}. "
                    f"To change this, edit or create the file {ignoring.OWN} in source_dir: this file replaces "
                    ".gitignore files."
                )

    def _has_modules(self, name: str) -> bool:
        """Return whether an excluded path is a folder that the code could import: a folder with Python files."""
        if not name.endswith("/") or not name.rstrip("/").rpartition("/")[2].isidentifier():
            return False
        top, _, rest = name.partition("/")
        for folder in (path / name if not root else path / rest for root, path in self.roots if root in ("", top)):
            with contextlib.suppress(OSError), os.scandir(folder) as found:
                # A folder of data may have millions of files.
                if any(item.name.endswith(".py") for item in itertools.islice(found, _MOST_SEARCHED)):
                    return True
        return False

    def notes(self) -> list[str]:
        """Return one text for each kind of ignore file. The text lists the files that the ignore file excludes."""
        ignored = self.listing.ignored.items()
        return [f"left out of the job's code by {file}: {listed(names, _MOST_NAMED)}" for file, names in ignored]

    def _largest(self) -> list[tuple[str, int]]:
        sizes: dict[str, int] = {}
        for entry in self.listing.entries:
            top = entry.name.split("/", 1)[0]
            sizes[top] = sizes.get(top, 0) + entry.size
        return sorted(sizes.items(), key=lambda item: -item[1])[:3]

    def names(self, pattern: re.Pattern[bytes], *, packed: bool = True) -> bool:
        """Return whether a pattern matches the content of any file of the code.

        Args:
            pattern: The pattern.
            packed: Whether to return True if the source contains an archive, such as a wheel. The content of archives
                is not searched.
        """
        for entry in self.listing.entries:
            if entry.content is not None and entry.name == self.program:
                continue  # fleetfit's program, which loads the user's function from a separate file
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
                except OSError:  # the later copy reports the error
                    continue
            if pattern.search(content):
                return True
        return False

    def text_of(self, name: str) -> bytes:
        """Return the content of a file, or ``b""`` if the file does not exist or cannot be read."""
        for entry in self.listing.entries:
            if entry.name == name and entry.origin is not None and entry.size <= _LARGEST_TEXT:
                with contextlib.suppress(OSError):  # the later copy reports the error
                    return Path(entry.origin).read_bytes()
        return b""

    def entry_text(self) -> bytes:
        """Return the text of the entry point if it is a Python script or module. Return ``b""`` otherwise."""
        if self.program.endswith(".py"):
            return self.text_of(self.program)
        module = self.program.replace(".", "/")
        return self.text_of(f"{module}.py") or self.text_of(f"{module}/__main__.py")

    def found(self) -> Source:
        """Return the code without its generated files."""
        entries = tuple(entry for entry in self.listing.entries if entry.content is None)
        return dataclasses.replace(self, taken=dataclasses.replace(self.listing, entries=entries), made={})

    def from_copy(self, folder: str | Path) -> Source:
        """Return the same code, but read its files from a copy.

        The caller has made the copy with ``source.found().copy_to(folder)``.

        Args:
            folder: The folder of the copy.
        """
        entries = tuple(
            entry if entry.origin is None else dataclasses.replace(entry, origin=os.path.join(folder, entry.name))
            for entry in self.listing.entries
        )
        return dataclasses.replace(self, taken=dataclasses.replace(self.listing, entries=entries))

    def copy_to(self, target: str | Path) -> None:
        """Copy the code into a folder, which is created if necessary.

        Only the user can access the copied files (modes 0600 and 0700). Executable files stay executable. Links whose
        targets are inside the source stay links.

        Raises:
            ConfigurationError: a file cannot be read.
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


def resolve_function(
    packed: Packed,
    source_dir: str | None = None,
    dependencies: tuple[str, ...] = (),
    *,
    without: tuple[str | os.PathLike[str], ...] = (),
) -> Source:
    """Return the code of a job that runs a function.

    The code consists of the function's files and the project's modules that the function needs.

    Args:
        packed: The function.
        source_dir: A folder to copy as a whole in addition to the function's modules. The folder is useful for a
            ``requirements.txt``, or for modules that the function imports by name with ``importlib``.
        dependencies: The dependencies, as for :func:`resolve`.
        without: Folders that are never copied.

    Raises:
        ConfigurationError: a file is missing, or has the same name as one of fleetfit's packages.
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
    """Find and check the user's code.

    Args:
        entry_point: A file, a module, or a folder with a ``__main__.py``. A file's path is relative to ``source_dir``
            if ``source_dir`` is given.
        source_dir: A folder that is copied as a whole. Without ``source_dir``, only the entry point is copied.
        dependencies: Files and folders that are copied to the folder of the entry point.
        without: Folders that are never copied.

    Raises:
        ConfigurationError: a file is missing, is outside of ``source_dir``, or has the same name as one of fleetfit's
            packages.
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
    """Yield the paths of the entry point's files, such as a module and the ``__init__.py`` files of its packages.

    For a link, also yield the path of its target.
    """
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
    """Return whether a folder adds a file or folder with the given name to the job's code.

    The result is False if an ignore file excludes the file or folder.
    """
    real = os.path.realpath(root)
    path = os.path.join(real, name)
    return os.path.lexists(path) and not ignoring.Ignored(real).leaves_out(path, is_folder=os.path.isdir(path))


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
    """Return the program and the root (see :class:`Source`) for an entry point without a source folder.

    Only the entry point is copied.
    """
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
    """Return the program for an entry point in a source folder.

    The program is a path relative to the source folder, or a module name.
    """
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
    """Check that a file can be the entry point.

    Raises:
        ConfigurationError: the file is not a Python script, a shell script, a module or an executable.
    """
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
    """Return a hint for a path that does not exist.

    The hint suggests a similar name in the same folder, or says that the folder does not exist.
    """
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return f" There is no folder {str(path.parent)!r}."
    guess = nearest_file(path.name, names)
    return f" Did you mean {guess!r}?" if guess is not None else ""


# --- listing and copying ---


def _list(roots: tuple[tuple[str, Path], ...], without: frozenset[str], kept: tuple[str, ...]) -> Listing:
    entries: list[SnapshotEntry] = []
    folders: list[str] = []
    left_out: list[str] = []
    ignored: dict[str, list[str]] = {}
    for name, path in roots:
        real = os.path.realpath(path)
        if os.path.isdir(real):
            if name:
                folders.append(name)
            rules = ignoring.Ignored(real, kept)
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


def _walk(
    folder: str,
    prefix: str,
    root: str,
    above: tuple[str, ...],
    without: frozenset[str],
    left_out: list[str],
    rules: ignoring.Ignored,
    ignored: list[str],
) -> Iterator[str | SnapshotEntry]:
    """Yield everything below a folder: files and links as entries, and folders as names in the snapshot.

    Args:
        folder: The folder, without symbolic links in its path.
        prefix: The folder's name in the snapshot.
        root: The folder of the source. Links to targets in this folder stay links.
        above: The folders that are being listed, from the root to ``folder``.
        without: Folders that are left out.
        left_out: A list to which a description of each item that cannot be copied is added.
        rules: The rules of ignore files for paths below the root.
        ignored: A list to which each path that these rules exclude is added.
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
        if rules.leaves_out(path, is_folder=is_folder):
            ignored.append(f"{name}/" if is_folder else name)
            continue
        if item.is_symlink():
            link = _inner_link(path, root)
            if link is not None and rules.leaves_out_anywhere(os.path.realpath(path)):
                left_out.append(f"{path} is left out: it links to {os.readlink(path)}, which {rules.file} leaves out")
                continue
            if link is not None:
                yield SnapshotEntry(name, None, link=link)
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
            continue  # removed meanwhile
        if stat.S_ISDIR(status.st_mode):
            if path in without:
                continue
            if item.name == "jobs" and _holds_records(path):
                left_out.append(
                    f"{path} is left out: it has the records of fleetfit's jobs. Move the fleetfit home "
                    "($FLEETFIT_HOME) out of source_dir"
                )
                continue
            yield name
            inner_root = root if path == item.path else path
            inner_rules = rules if inner_root == root else ignoring.Ignored(inner_root)
            yield from _walk(path, name, inner_root, (*above, path), without, left_out, inner_rules, ignored)
        elif (kind := _kind(status)) is not None:
            left_out.append(f"{path} is left out: {kind} cannot be part of a job's code")
        else:
            yield _file(path, name, status)


def _holds_records(folder: str) -> bool:
    """Return whether a folder contains the records of a fleetfit home's jobs.

    If such a folder were copied, the record of each job would contain the records of all earlier jobs.
    """
    records = (JobRecord(Path(folder) / name) for name in job_names(Path(folder).parent))
    with contextlib.suppress(OSError):
        return any(one.lock_file.exists() and one.request_file.exists() and one.status_file.exists() for one in records)
    return False


def _kind(status: os.stat_result) -> str | None:
    """Return the name of a special file's type, or None for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return None
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


def _file(path: str, name: str, status: os.stat_result) -> SnapshotEntry:
    if (kind := _kind(status)) is not None:
        raise ConfigurationError(f"source_dir: {path} is {kind}, which cannot be part of a job's code. Move it away.")
    if not os.access(path, os.R_OK):
        raise ConfigurationError(f"source_dir: {path} cannot be read: permission denied.")
    return SnapshotEntry(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _inner_link(path: str, root: str) -> str | None:
    """Return the relative target of a link whose target exists inside ``root``, or None for any other link.

    Targets in folders that are never copied (:data:`SKIPPED`) do not count as inside.
    """
    target = os.path.realpath(path)
    if not os.path.exists(target) or not target.startswith(root.rstrip("/") + "/"):
        return None
    inside = os.path.relpath(target, root).split(os.sep)
    if any(part in SKIPPED for part in inside):
        return None
    return os.path.relpath(target, os.path.realpath(os.path.dirname(path)))


def _copy(entry: SnapshotEntry, place: str) -> None:
    if entry.content is not None:
        Path(place).write_bytes(entry.content)
        os.chmod(place, 0o600)
        return
    assert entry.origin is not None  # files that are not generated have an origin
    try:
        shutil.copyfile(entry.origin, place)
        status = os.stat(entry.origin)
    except FileNotFoundError as error:
        if error.filename != entry.origin:
            raise
        return  # removed meanwhile
    except OSError as error:
        if error.filename != entry.origin:
            raise
        raise ConfigurationError(f"source_dir: {entry.origin} cannot be read: {error.strerror}.") from error
    os.chmod(place, 0o700 if entry.executable else 0o600)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
