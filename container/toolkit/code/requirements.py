"""Install a job's ``requirements.txt`` into a cached folder, once, and never into the user's environment.

pip's resolver finds the packages that the installed environment lacks (``pip install --dry-run``). These packages are
installed into a separate folder, the overlay (``--target``), which is added to ``PYTHONPATH``. The overlay's name is a
hash of everything that its content depends on. Therefore jobs and hosts share an overlay, and a changed environment
gets a new overlay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from container.contract.frozen import dataclass
from container.contract.names import listed
from container.toolkit.code import requirement_files

if TYPE_CHECKING:
    from container.toolkit.code.requirement_files import Requirements

#: The file in every overlay that describes the overlay's content. The file's modification time is the time of the
#: overlay's last use.
MARKER = ".fleetfit-overlay.json"

# The program that another interpreter runs to describe itself.
_DESCRIBE = """\
import json, os, sys
print(json.dumps([sys.implementation.cache_tag + " " + os.uname().machine, sys.path]))
"""
_METADATA = (".dist-info", ".egg-info", ".egg-link")

_FORMAT = 1  # part of the key: increase it when the creation of overlays changes
_SHOWN = 8  # maximum number of packages in a progress line
_ASKING_S = 30.0  # time limit for a request to a git repository
_TRIED_AGAIN_S = 600.0  # a failed build is not repeated for this long, e.g. by the job's other hosts
_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".venv", ".tox", "build", ".mypy_cache", ".pytest_cache"})


class RequirementsError(RuntimeError):
    """Error for requirements that cannot be installed. The message has the remedy and pip's error."""


@dataclass(frozen=True)
class _Interpreter:
    """The facts about a Python interpreter that an overlay depends on.

    Attributes:
        python: The path of the interpreter.
        tag: The implementation and version of the interpreter, such as ``cpython-311``, and the machine's architecture.
        installed: The names of the metadata folders in its environment, such as ``numpy-1.26.4.dist-info``.
    """

    python: str
    tag: str
    installed: tuple[str, ...]

    def versions(self) -> dict[str, str]:
        """Return the installed versions, by the normalised names of the packages."""
        found = {}
        for folder in self.installed:
            stem = folder.rpartition(".")[0]
            name, _, version = stem.partition("-")
            found[_normal(name)] = version.partition("-")[0]
        return found


class Told(Protocol):
    """A receiver of messages about an installation."""

    def log(self, line: str) -> None:
        """Receive a line about the progress."""

    def warn(self, text: str) -> None:
        """Receive a warning for the user."""


def overlay(
    requirements: Path | None,
    *,
    python: str,
    cache_root: Path,
    told: Told,
    project: Path | None = None,
    timeout: float = 3600.0,
) -> Path | None:
    """Install the required packages that the environment lacks into a cached folder, and return the folder. If such a
    folder exists already, install nothing.

    Several hosts and jobs may call this function simultaneously. One of them installs the packages, and the others
    wait. Any thread may call this function, if the thread lives until the function returns.

    Args:
        requirements: The requirements file. None if there is only a project.
        python: The interpreter of the job's scripts.
        cache_root: The folder of fleetfit's cache. Overlays are in its subfolder ``overlays/``.
        told: The receiver of messages. If the result is cached, no progress is reported. If the project cannot be
            built, a warning is sent.
        project: A folder with ``setup.py`` or ``pyproject.toml`` that is also to be installed. If the project cannot be
            built, only its dependencies are installed.
        timeout: The time limit of each run of pip, in seconds.

    Returns:
        The folder for ``PYTHONPATH``. If the folder has a subfolder ``bin``, the subfolder is for ``PATH``. None if no
        packages are missing.

    Raises:
        RequirementsError: the requirements cannot be installed.
    """
    try:
        wanted = _read(requirements) if requirements is not None else None
        if project is not None and wanted is not None and _names(wanted, project):
            project = None  # `-e .` in the file: pip refuses to install one package twice
        if project is None and (wanted is None or wanted.count == 0):
            return None
        interpreter = _interpreter(python)
        key = _key(wanted, project, interpreter)
        folder = cache_root / "overlays" / key
        # If the project could not be built, the overlay without it is used only for a while, because a later build may
        # succeed. The overlay is then not removed, because running jobs may still use it.
        unbuilt = folder.with_name(f"{key}-{int(time.time() // _TRIED_AGAIN_S)}")
        for known in (folder, unbuilt):
            if (found := _cached(known, told)) is not _ABSENT:
                return found
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(folder.with_name(f"{key}.lock"), told):
            for known in (folder, unbuilt):
                if (found := _cached(known, told)) is not _ABSENT:
                    return found
            # Left by an installation that was killed, or an overlay that was damaged.
            for leftover in (*folder.parent.glob(f".{key}.*"), folder, unbuilt):
                shutil.rmtree(leftover, ignore_errors=True)
            staging = folder.with_name(f".{key}.{os.getpid()}")
            try:
                installation = _Installation(requirements, wanted, project, interpreter, staging, told, timeout)
                installation.run()
                made = unbuilt if installation.warnings else folder
                os.rename(staging / "overlay", made)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return _cached(made, told)
    except OSError as error:
        raise RequirementsError(
            f"{requirements or project}: the packages could not be installed into {cache_root}. "
            f"{error.filename or cache_root}: {error.strerror or error}. Set FLEETFIT_CACHE to use another folder."
        ) from error


_ABSENT = Path()


def _read(requirements: Path) -> Requirements:
    try:
        return requirement_files.read(requirements)
    except OSError as error:
        raise RequirementsError(
            f"{requirements}: {os.path.normpath(error.filename or requirements)} cannot be read: {error.strerror}. The "
            "files that -r and -c name must be part of the job's code, at paths relative to the file that names them."
        ) from error


def _names(wanted: Requirements, project: Path) -> bool:
    """Return whether the requirements file names the project's folder as a package to install."""
    return os.path.realpath(project) in map(os.path.realpath, wanted.local)


def _cached(folder: Path, told: Told) -> Path | None:
    """Look for a cached overlay. If it exists, record the time of its use, and send ``told`` the warnings of its
    installation.

    Returns:
        The folder of the overlay. None if no packages are missing. ``_ABSENT`` if the overlay does not exist.
    """
    try:
        with open(folder / MARKER, encoding="utf-8") as file:
            marker = json.load(file)
        packages = marker["packages"]
        for text in marker.get("warnings") or ():
            told.warn(text)
        os.utime(folder / MARKER)  # the time of the last use, for clearing the cache
    except (OSError, ValueError, KeyError, TypeError):
        return _ABSENT
    return folder if packages else None


@contextlib.contextmanager
def _lock(file: Path, told: Told) -> Iterator[None]:
    """Lock a file during a ``with`` block. If another process has locked the file, report this to ``told``, and wait.
    The kernel releases the lock if this process is killed.
    """
    with open(file, "w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told.log("requirements: waiting for another host or job, which is installing the same packages")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _key(wanted: Requirements | None, project: Path | None, interpreter: _Interpreter) -> str:
    constraint = os.environ.get("PIP_CONSTRAINT", "")
    contents = [(name, hashlib.sha256(content).hexdigest()) for name, content in wanted.contents] if wanted else []
    contents += [(path, _file_digest(path)) for path in constraint.split() if os.path.isfile(path)]
    parts: list[Any] = [_FORMAT, interpreter.python, interpreter.tag, interpreter.installed, constraint, contents]
    for path in (*(wanted.local if wanted else ()), *((project,) if project else ())):
        parts.append(_tree_digest(path))
    parts += [_commit(url, ref) for url, ref in requirement_files.branches(wanted)] if wanted is not None else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _commit(url: str, ref: str) -> str:
    """Return the output of ``git ls-remote`` for a branch or tag of a repository. The output contains the current
    commit.

    The overlay's name depends on this output. Therefore, when a branch moves to a new commit, the overlay of the
    earlier commit is no longer used. Return "" after an error, because pip will report the error.
    """
    import subprocess

    environment = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **os.environ, "GIT_TERMINAL_PROMPT": "0"}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            ["git", "ls-remote", "--", url, ref], env=environment, capture_output=True, timeout=_ASKING_S, check=False
        )
        return said.stdout.decode("utf-8", "replace")
    return ""


def _tree_digest(path: Path) -> list[tuple[str, str]]:
    """Return the name and the digest of a file, or of each file in a folder."""
    if path.is_file():
        return [(path.name, _file_digest(path))]
    found = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.endswith((".egg-info", ".dist-info"))
        )
        for name in sorted(files):
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                found.append((os.path.relpath(file, path), _file_digest(file)))
    return found


def _file_digest(path: str | Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _interpreter(python: str) -> _Interpreter:
    """Return the facts about an interpreter's environment. Start the interpreter only if this process runs under a
    different interpreter.
    """
    python = os.path.abspath(shutil.which(python) or python)
    if python == os.path.abspath(sys.executable):
        import site

        # The toolkit runs in isolated mode; scripts do not.
        path = [*sys.path, site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        tag = f"{sys.implementation.cache_tag} {os.uname().machine}"
    else:
        import subprocess

        said = subprocess.run([python, "-c", _DESCRIBE], capture_output=True, check=False, cwd="/", text=True)
        try:
            tag, path = json.loads(said.stdout)
        except ValueError:
            raise RequirementsError(f"{python} does not run: {said.stderr.strip() or said.returncode}.") from None
    installed: set[str] = set()
    for folder in path:
        with contextlib.suppress(OSError):  # paths may be archives, or may not exist
            installed.update(name for name in os.listdir(folder) if name.endswith(_METADATA))
    return _Interpreter(python, tag, tuple(sorted(installed)))


class _Installation:
    """Find the packages that the interpreter's environment lacks, and install these packages into ``staging/overlay``.

    Args:
        requirements: The requirements file. None if there is no such file.
        wanted: The content of the requirements file. None if there is no such file.
        project: The folder of a project to install. None if there is no project.
        interpreter: The interpreter for which the packages are installed.
        staging: The folder for temporary files.
        told: The receiver of messages about the progress.
        timeout: The time limit of each run of pip, in seconds.
    """

    def __init__(
        self,
        requirements: Path | None,
        wanted: Requirements | None,
        project: Path | None,
        interpreter: _Interpreter,
        staging: Path,
        told: Told,
        timeout: float,
    ) -> None:
        self._requirements = requirements
        self._wanted = wanted
        self._project = project
        self._interpreter = interpreter
        self._staging = staging
        self._told = told
        self._timeout = timeout
        self._name = requirements.name if requirements is not None else "the package"
        self._root = os.path.abspath(requirements.parent if requirements is not None else str(project))
        self.warnings: list[str] = []

    def run(self) -> None:
        """Create ``staging/overlay`` with its marker file."""
        began = time.monotonic()
        target = self._staging / "overlay"
        target.mkdir(parents=True, mode=0o700)
        self._told.log(f"{self._name}: looking for missing packages")
        missing = self._missing()
        pins = [_pin(item, hashed=self._wanted is not None and self._wanted.hashed) for item in missing]
        names = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in missing]
        if missing:
            self._told.log(f"{self._name}: installing {listed(names, _SHOWN)}, for this job only")
            self._tell_of_replaced(missing)
            pins_file = self._staging / "pins.txt"
            options = self._wanted.options if self._wanted is not None else ()
            pins_file.write_text("\n".join((*options, *pins, "")), encoding="utf-8")
            self._pip("install", "--no-deps", "--target", str(target), "-r", str(pins_file))
            self._told.log(f"{self._name}: installed in {time.monotonic() - began:.1f} s")
            if unread := sorted(file.name for file in target.glob("*.pth")):
                self._told.log(f"{self._name}: {', '.join(unread)} has no effect outside of site-packages")
        else:
            self._told.log(f"{self._name}: nothing is missing")
        marker = {"packages": names, "python": self._interpreter.python, "tag": self._interpreter.tag}
        marker["warnings"] = self.warnings
        (target / MARKER).write_text(json.dumps(marker), encoding="utf-8")

    def _missing(self) -> list[dict[str, Any]]:
        """Ask pip which packages it would install, and return their descriptions from pip's report."""
        report = self._staging / "report.json"
        arguments = ["install", "--dry-run", "--report", str(report)]
        if self._requirements is not None:
            arguments += ["-r", os.path.abspath(self._requirements)]
        if self._project is not None:
            try:
                arguments.append(str(self._build()))
            except RequirementsError as error:
                if re.search(r"the disk is full|did not end within", str(error)):
                    raise
                arguments += self._without_project(self._project, error)
        if arguments[-1] == str(report):  # no requirements are left
            return []
        self._pip(*arguments)
        content = json.loads(report.read_text(encoding="utf-8"))
        return sorted(content["install"], key=lambda item: str(item["metadata"]["name"]).lower())

    def _build(self) -> Path:
        """Build the project's wheel from a copy of the project, because a build writes into the project's folder.

        Returns:
            The path of the wheel.
        """
        from container.system.copying import copy_tree

        assert self._project is not None
        copy = self._staging / "project"
        copy_tree(self._project, copy)
        self._told.log(f"building the package in {self._project}")
        wheels = self._staging / "wheels"
        isolation = ["--no-build-isolation"] if self._can_build_here() else []
        self._pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(wheels), str(copy))
        return next(wheels.glob("*.whl"))

    def _without_project(self, project: Path, error: RequirementsError) -> list[str]:
        """Return the dependencies of a project that cannot be built. Also add a warning that the project is not
        installed, and that the script therefore runs from the project's folder.

        Args:
            project: The folder of the project.
            error: The error of the build, from which the warning quotes the cause.
        """
        needed = requirement_files.dependencies_of(project / "pyproject.toml")
        got = "its dependencies are installed" if needed else "its dependencies must be in a requirements.txt"
        _, _, output = str(error).partition("lines of output]\n")
        lines = [line.strip() for line in output.partition("[end of output]")[0].splitlines() if line.strip()]
        causes = [line for line in lines if re.match(r"[\w.]*([Ee]rror|Exception)\b", line)] or lines[-1:]
        why = f" ({causes[-1][:300].rstrip('.')})" if causes else ""
        self.warnings.append(
            f"the package in source_dir could not be built{why}, so it is not installed. The script runs from "
            f"source_dir, and {got}."
        )
        return needed

    def _can_build_here(self) -> bool:
        """Return whether the installed packages can build the project without any download.

        They can if the project names no ``[build-system]``, and setuptools 71 or newer is installed, or an older
        setuptools with wheel.
        """
        assert self._project is not None
        pyproject = self._project / "pyproject.toml"
        if pyproject.is_file() and "[build-system]" in pyproject.read_text(encoding="utf-8", errors="replace"):
            return False
        installed = self._interpreter.versions()
        major = installed.get("setuptools", "0").partition(".")[0]
        return int(major) >= 71 or ("setuptools" in installed and "wheel" in installed)

    def _pip(self, *arguments: str) -> None:
        from container.toolkit.code import pip

        python, cwd = self._interpreter.python, Path(self._root)
        try:
            for line in pip.lines_of(arguments, python=python, cwd=cwd, timeout=self._timeout):
                if line.lstrip().startswith(("Downloading ", "Building wheel")):
                    self._told.log(f"{self._name}: {line.strip()}")
        except pip.PipError as error:
            said = "".join(f"\n  {line}" for line in error.said)
            place = self._requirements or self._project
            raise RequirementsError(
                f"{place} could not be installed: {error}" + (f"\npip said:{said}" if said else "")
            ) from None

    def _tell_of_replaced(self, missing: list[dict[str, Any]]) -> None:
        installed = self._interpreter.versions()
        for item in missing:
            name, version = str(item["metadata"]["name"]), item["metadata"]["version"]
            before = installed.get(_normal(name))
            if before not in (None, version):
                self._told.log(f"{self._name}: {name} {version} is used in place of the installed {before}")


def _pin(item: dict[str, Any], *, hashed: bool) -> str:
    """Return a requirement that pins a package to the version, or to the URL, that pip has found.

    Source: "Installation Report" of pip's documentation, and PEP 610 (direct_url.json).

    Args:
        item: An item of ``install`` in pip's report. The item describes one package.
        hashed: Whether the requirement contains the hashes of the package's files.
    """
    name = f"{item['metadata']['name']}=={item['metadata']['version']}"
    info = item["download_info"]
    if not item.get("is_direct"):
        hashes = info.get("archive_info", {}).get("hashes", {})
        return name + "".join(f" --hash={kind}:{value}" for kind, value in hashes.items() if hashed)
    url = info["url"]
    if "vcs_info" in info:
        url = f"{info['vcs_info']['vcs']}+{url}@{info['vcs_info']['commit_id']}"
    fragments = []
    if "subdirectory" in info:
        fragments.append(f"subdirectory={info['subdirectory']}")
    if hashed:
        fragments += [f"{kind}={value}" for kind, value in info.get("archive_info", {}).get("hashes", {}).items()][:1]
    if fragments:
        url += "#" + "&".join(fragments)
    return f"{item['metadata']['name']} @ {url}"


def _normal(name: str) -> str:
    """Return a package's name, normalised as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()
