"""Put the user's code into ``/opt/ml/code``, and build the command that runs its entry point.

The rules are those of SageMaker's training toolkit (``_entry_point_type.py``, ``process.py``, ``entry_point.py``),
but with argv lists instead of a shell string, so that every argument arrives unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from container.system.locations import LocationError, is_s3, local_path

#: File name suffixes of Python modules.
_SUFFIXES = frozenset(importlib.machinery.all_suffixes())
#: Our own packages.
_OUR_NAMES = ("container", "estimators", "fleetfit")

#: While this file exists, the code folder is incomplete.
_INCOMPLETE = ".fleetfit-incomplete"
#: Prefix of temporary copies that replace files with several hard links (:func:`unshare`).
SHARING = ".fleetfit-sharing-"

_SHOWN = 20  # maximum number of names in an error message
_ARCHIVE_ENDINGS = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".zip")


class CodeError(ValueError):
    """Error for user code that cannot be used. The message names the file and the remedy."""


def materialize(submit_directory: str | None, code_dir: Path, program: str, *, max_bytes: int | None = None) -> None:
    """Copy the user's code into ``code_dir``. Copy nothing if the program is already there, as in an image that
    contains the code.

    Args:
        submit_directory: The location of the code: a folder or a ``.tar.gz``, as an absolute path, a ``file://`` URL or
            an S3 URI. None or empty if the code exists already.
        code_dir: The host's ``/opt/ml/code``.
        program: The entry point. See :func:`entry_command`.
        max_bytes: The maximum size of an archive's unpacked content, in bytes. If None, fleetfit's default limit for
            archives.

    Raises:
        CodeError: the code is not available, is not safe to unpack, or would hide our own packages.
    """
    incomplete = code_dir / _INCOMPLETE
    try:
        if incomplete.exists():
            _empty(code_dir)
        if submit_directory and not _has_program(code_dir, program):
            code_dir.mkdir(parents=True, exist_ok=True)
            incomplete.touch()
            _fetch(submit_directory, code_dir, max_bytes)
            incomplete.unlink()
        elif submit_directory:
            unshare(code_dir)
        check_names(code_dir.iterdir() if code_dir.is_dir() else ())
        _make_executable(code_dir, program)
    except OSError as error:
        raise CodeError(
            f"the code of {submit_directory or code_dir} could not be put into {code_dir}. "
            f"{error.filename or code_dir}: {error.strerror or error}."
        ) from error


def entry_command(program: str, code_dir: Path, args: Sequence[str], python: str) -> tuple[str, ...]:
    """Return the command that runs the entry point. The working directory of the command must be ``code_dir``.

    * ``train.sh``: ``/bin/sh ./train.sh``. If the file's first line names an interpreter other than ``sh``, the command
      is the file itself;
    * ``train.py`` or ``trainer.train`` of a project (``setup.py``, or a ``pyproject.toml`` that describes a build):
      ``python -m``. The same applies to a module's dotted name, and to a folder with ``__main__.py``;
    * any other ``train.py``: ``python train.py``;
    * any other file: the file itself, as an executable.

    This function does not change the folder.

    Args:
        program: The entry point, relative to ``code_dir``.
        code_dir: The folder of the code.
        args: The script's arguments.
        python: The path of the interpreter.

    Raises:
        CodeError: the program does not exist. The message lists the folder's entries.
    """
    name = _relative(program, code_dir)
    path = code_dir / name
    if name.endswith(".sh"):
        if not path.is_file():
            raise _missing(program, code_dir)
        return (*_file_command(path, name), *args)
    project = is_project(code_dir)
    module = _module(name, code_dir, project)
    if module is not None:
        return (python, "-m", module, *args)
    if path.is_dir():
        raise CodeError(
            f"entry point {program!r} is a folder without a __main__.py in {code_dir}. Name a file or a module, e.g. "
            f"{_example(path, name)!r}."
        )
    if not path.is_file():
        raise _missing(program, code_dir)
    if name.endswith(".py"):
        return (python, name if not name.startswith("-") else f"./{name}", *args)
    return (*_file_command(path, name), *args)


def is_project(code_dir: Path) -> bool:
    """Return whether a folder is a package to install. Like SageMaker's toolkit, this function checks for ``setup.py``.

    A ``pyproject.toml`` counts only if it describes the build or the project, because many such files contain only the
    settings of tools.
    """
    if (code_dir / "setup.py").is_file():
        return True
    try:
        text = (code_dir / "pyproject.toml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(line.strip() in ("[project]", "[build-system]") for line in text.splitlines())


def _fetch(submit_directory: str, code_dir: Path, max_bytes: int | None) -> None:
    if is_s3(submit_directory):
        _fetch_from_s3(submit_directory, code_dir)
        return
    try:
        source = local_path(submit_directory)
    except LocationError as error:
        raise CodeError(f"the code's location: {error}") from None
    if source.is_dir():
        _copy_folder(source, code_dir)
    elif not source.exists():
        raise CodeError(f"the code's location {submit_directory!r} does not exist. Give a folder or a .tar.gz.")
    else:
        _take_file(source, code_dir, max_bytes)


def _fetch_from_s3(uri: str, code_dir: Path) -> None:
    """Download an archive from S3, and unpack the archive into ``code_dir``.

    Raises:
        CodeError: the archive cannot be downloaded or unpacked.
    """
    import tempfile

    from container.agent.s3 import client
    from container.agent.sources.base import SourceError

    try:
        _, key = client.split(uri)
        with tempfile.TemporaryDirectory(prefix=".code-", dir=code_dir.parent) as folder:
            target = Path(folder, os.path.basename(key) or "sourcedir.tar.gz")
            s3 = client.client()
            client.call(uri, lambda: _download(s3, uri, target))
            _take_file(target, code_dir)
    except SourceError as error:
        raise CodeError(f"the code: {error}") from None


def _download(s3: Any, uri: str, target: Path) -> None:
    from container.agent.s3 import client
    from container.agent.sources.base import SourceError

    bucket, key = client.split(uri)
    with contextlib.closing(s3.get_object(Bucket=bucket, Key=key)["Body"]) as body, target.open("wb", 0) as file:
        while chunk := memoryview(body.read(1 << 20)):
            try:
                while chunk:
                    chunk = chunk[file.write(chunk) :]
            except OSError as error:  # a retry would not help
                text = f"it cannot be written to {target.parent}: {error.strerror}"
                raise SourceError(uri, text, "Make room there.") from None


def _copy_folder(source: Path, code_dir: Path) -> None:
    from container.system.copying import CopyError, copy_tree

    inner, outer = os.path.realpath(code_dir), os.path.realpath(source)
    if inner == outer:
        return
    if inner.startswith(outer.rstrip("/") + "/"):
        raise CodeError(
            f"the code's folder {source} cannot be copied to {code_dir}, which is inside {source}. Use a smaller "
            "folder."
        )
    check_names(source.iterdir())
    try:
        copy_tree(source, code_dir)
    except CopyError as error:
        raise CodeError(f"the code in {source}: {error}") from None


def _take_file(source: Path, code_dir: Path, max_bytes: int | None = None) -> None:
    from container.system.archive import BOUNDED, ArchiveBounds, ArchiveError, extract, is_archive
    from container.system.copying import copy_file

    if is_archive(source):
        try:
            extract(source, code_dir, ArchiveBounds(max_bytes) if max_bytes else BOUNDED)
        except ArchiveError as error:
            raise CodeError(f"the code's archive {error}") from None
    elif source.name.endswith(_ARCHIVE_ENDINGS):
        raise CodeError(f"{source} is not a tar.gz. Pack the code with 'tar -czf sourcedir.tar.gz -C FOLDER .'.")
    else:
        copy_file(os.fspath(source), os.fspath(code_dir / source.name))


def check_names(paths: Iterable[Path]) -> None:
    """Refuse code that a script would import instead of our own packages.

    A folder without ``__init__.py`` is accepted, because Python prefers a package to such a folder.

    Args:
        paths: The entries at the top of the code.

    Raises:
        CodeError: a package or module has the name of one of our packages.
    """
    for path in paths:
        name, _, rest = path.name.partition(".")
        module = f".{rest}" in _SUFFIXES if rest else (path / "__init__.py").is_file()
        if name in _OUR_NAMES and module:
            raise CodeError(
                f"{path} would hide fleetfit's own package {path.name!r} from the script, because it is at the top "
                "of the job's code. Rename it, or choose a source_dir further down."
            )


def unshare(folder: Path) -> bool:
    """Replace each file that has more than one hard link by a copy.

    The code of a job that has ended may share its files with the job's record through hard links. With a copy, a change
    of the file does not affect the record.

    Returns:
        Whether there were such files.
    """
    from container.system.copying import copy_file

    found = False

    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner, name)
            if name.startswith(SHARING):  # left by a process that was killed
                path.unlink(missing_ok=True)
                continue
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                copy = path.with_name(f"{SHARING}{os.urandom(16).hex()}")
                copy_file(os.fspath(path), os.fspath(copy))
                copy.replace(path)
                found = True
    return found


def _empty(folder: Path) -> None:
    from container.system.removing import remove_tree

    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()


def _make_executable(code_dir: Path, program: str) -> None:
    """Set the executable bit of a program that is not a Python file, as SageMaker's toolkit does."""
    if program.endswith(".py"):
        return
    path = code_dir / _relative(program, code_dir)
    if path.is_file() and not os.access(path, os.X_OK):
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | (mode & 0o444) >> 2)


def _has_program(code_dir: Path, program: str) -> bool:
    if not code_dir.is_dir():
        return False
    name = _relative(program, code_dir)
    return (code_dir / name).exists() or _module(name, code_dir, is_project(code_dir)) is not None


def _relative(program: str, code_dir: Path) -> str:
    """Return the path of a program relative to the code folder.

    Raises:
        CodeError: the path is empty, or outside the code folder.
    """
    name = os.path.normpath(program) if program else ""
    if os.path.isabs(name):
        name = os.path.relpath(name, code_dir)
    if not program or name == "." or name.split("/")[0] == "..":
        raise CodeError(f"entry point {program!r} must name a file or module inside the code's folder {code_dir}.")
    return name


def _module(name: str, code_dir: Path, project: bool) -> str | None:
    """Return the module to run with ``python -m``. Return None if the entry point is not a module.

    Args:
        name: The entry point, relative to ``code_dir``.
        code_dir: The folder of the code.
        project: Whether the code is a package that is installed.
    """
    if name.endswith(".py"):
        module = name[:-3].replace("/", ".")
        if not project or module.count(".") != name.count("/"):
            return None
        return module if _defines(code_dir, module) else None
    path = code_dir / name
    if path.is_dir():
        return name.replace("/", ".") if (path / "__main__.py").is_file() else None
    if path.exists() or "/" in name or not all(part.isidentifier() for part in name.split(".")):
        return None
    return name if _defines(code_dir, name) else None


def _defines(code_dir: Path, module: str) -> bool:
    """Return whether a folder or its subfolder ``src`` contains a module, or a package with ``__main__``."""
    relative = module.replace(".", "/")
    return any(
        (root / f"{relative}.py").is_file() or (root / relative / "__main__.py").is_file()
        for root in (code_dir, code_dir / "src")
    )


def _file_command(path: Path, name: str) -> tuple[str, ...]:
    """Return the command of a file that is not a Python script.

    The command is the file itself. If the first line of a text file names no interpreter or names ``sh``, the command
    runs the file with ``/bin/sh``.

    Raises:
        CodeError: the first line has a Windows line ending, or names an interpreter that does not exist.
    """
    itself = f"./{name}"
    with open(path, "rb") as file:
        head = file.readline(512)
    if not head.startswith(b"#!"):
        binary = b"\0" in head or head.startswith(b"\x7fELF")
        return (itself,) if binary else ("/bin/sh", itself)
    if head.endswith(b"\r\n"):
        raise CodeError(
            f"{path} has Windows line endings, so the system would read the carriage return at the end of the first "
            f"line as part of the interpreter, {head[2:].decode('utf-8', 'replace').strip()!r}. Convert the file, "
            f"e.g. with 'sed -i \"s/\\r$//\" {name}'."
        )
    interpreter = head[2:].decode("utf-8", "surrogateescape").strip().split(None, 1)
    if not interpreter:
        return ("/bin/sh", itself)
    if not os.path.exists(interpreter[0]):
        raise CodeError(f"{path}: its first line names {interpreter[0]!r}, which this host does not have.")
    words = [os.path.basename(interpreter[0]), *interpreter[1:]]
    if words in (["sh"], ["env", "sh"]):
        return ("/bin/sh", itself)
    return (itself,) if os.access(path, os.X_OK) else (*interpreter, itself)


def _example(folder: Path, name: str) -> str:
    scripts = sorted(entry.name for entry in folder.glob("*.py"))
    return f"{name}/{scripts[0] if scripts else 'train.py'}"


def _missing(program: str, code_dir: Path) -> CodeError:
    from container.contract.names import listed, nearest

    try:
        names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(code_dir))
    except OSError:
        return CodeError(f"there is no entry point {program!r}: the code's folder {code_dir} does not exist.")
    if not names:
        return CodeError(
            f"there is no entry point {program!r}: the code's folder {code_dir} is empty. Give a source folder, or use "
            "an image that has the code there."
        )
    guess = nearest(program, names)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return CodeError(
        f"there is no entry point {program!r} in {code_dir}.{hint} The folder has: "
        f"{listed([repr(name) for name in names], _SHOWN)}."
    )
