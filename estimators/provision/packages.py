"""The packages of an environment: what is installed, and installing with pip."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimators.provision import commands
from estimators.provision.errors import (
    CommandFailed,
    IndexUnreachable,
    OutOfSpace,
    ProvisionError,
    RequirementUnavailable,
    VenvUnavailable,
)

_DIST_INFO = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")
# Settings that send packages elsewhere than into the environment whose pip is run.
_MISLEADING_VARIABLES = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "MAKEFLAGS")
_MEGABYTE = 1_000_000

_NO_SPACE = ("No space left on device", "Errno 28", "Disk quota exceeded")
_NO_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED",)
_NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "NewConnectionError",
    "NameResolutionError",
    "Network is unreachable",
    "Connection refused",
    "Connection reset",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "RemoteDisconnected",
    "ProxyError",
)
_NO_VERSION = re.compile(r"No matching distribution found for (?P<requirement>.+)")


#: A requirement of one extra, as the metadata of an installed package has it.
_OF_EXTRA = re.compile(r"""(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w.-]+)['"]\s*""")


def extras() -> dict[str, list[str]]:
    """The extras of the fleetfit that runs this, and what each asks for, in pip's syntax.

    Raises:
        ProvisionError: If it is not installed, but runs from its folder.
    """
    import importlib.metadata

    try:
        declared = importlib.metadata.requires("fleetfit") or []
    except importlib.metadata.PackageNotFoundError:
        raise ProvisionError(
            "fleetfit is not installed in this Python, so its extras are not known",
            "Install it first: `pip install .` in its folder.",
        ) from None
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_OF_EXTRA.fullmatch, declared)):
        found.setdefault(match["extra"], []).append(match["requirement"])
    return found


def normalized(name: str) -> str:
    """A distribution's name in the form that folders of installed ones have: lower case with underscores."""
    return re.sub(r"[-_.]+", "_", name).lower()


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A Python environment that packages can be installed into.

    Attributes:
        prefix: Its root folder, with ``bin`` and ``lib``.
        python: Its interpreter.
        packages: Its site-packages folder.
        state: Folder for logs of installations.
        lock: Descriptor of a lock that installing children keep held, or None.
    """

    prefix: Path
    python: Path
    packages: Path
    state: Path
    lock: int | None = None

    @classmethod
    def of_venv(cls, prefix: Path, *, lock: int | None = None) -> Installation:
        """The installation of a venv, found without running its Python.

        Raises:
            VenvUnavailable: If the folder is not a venv.
        """
        found = sorted(prefix.glob("lib/python3.*/site-packages"))
        if len(found) != 1:
            raise VenvUnavailable(
                f"{prefix} is not a usable virtual environment ({len(found)} site-packages folders)",
                f"Remove it (`rm -rf {prefix}`) and run the same command again.",
            )
        return cls(
            prefix=prefix,
            python=prefix / "bin" / "python",
            packages=found[0],
            state=prefix / ".fleetfit",
            lock=lock,
        )

    def installed(self) -> dict[str, str]:
        """Names (normalized) and versions of the installed distributions, from the names of their folders."""
        matches = (_DIST_INFO.fullmatch(name) for name in os.listdir(self.packages))
        return {normalized(match["name"]): match["version"] for match in matches if match}

    def environment(self, **extra: str) -> dict[str, str]:
        """This process's environment, with the installation's programs first in PATH."""
        kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING_VARIABLES}
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.prefix / "bin"), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(self.prefix),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            # pip's own five take minutes where there is no network, since each package is tried anew.
            "PIP_RETRIES": os.environ.get("PIP_RETRIES", "2"),
            **extra,
        }

    def run(
        self,
        arguments: Sequence[str],
        *,
        log: str,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> commands.Finished:
        """Runs this installation's Python with the arguments; the output goes to ``state/logs/<log>.log``."""
        return commands.run(
            [str(self.python), *arguments],
            log=self.log(log),
            environment=self.environment() if environment is None else environment,
            inherit=[] if self.lock is None else [self.lock],
            on_line=on_line,
        )

    def log(self, name: str) -> Path:
        """The file that the output of a step goes to."""
        return self.state / "logs" / f"{name}.log"

    def heal(self) -> list[str]:
        """Forgets packages whose installation was killed half-way, so that pip installs them again.

        pip writes a distribution's RECORD last but believes any folder that has METADATA, so after a SIGKILL it would
        call a half-copied package "already satisfied". Folders that start with ``~`` are what pip sets aside while it
        replaces a package.

        Returns:
            The names of what was removed.
        """
        broken = [folder for folder in self.packages.glob("*.dist-info") if not (folder / "RECORD").is_file()]
        broken += self.packages.glob("~*")
        for path in broken:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return [path.name for path in broken]

    def install(
        self,
        requirements: Sequence[str],
        *,
        log: str,
        options: Sequence[str] = (),
        on_detail: Callable[[str], None] = lambda text: None,
    ) -> commands.Finished:
        """Installs requirements with pip.

        Args:
            requirements: What to install, in pip's syntax.
            log: Name of the log.
            options: More options of ``pip install``.
            on_detail: Told what pip is doing, with downloaded megabytes.

        Raises:
            ProvisionError: If pip fails; its class tells why.
        """
        self.heal()
        return self._pip("install", [*options, *requirements], log=log, on_detail=on_detail)

    def uninstall(self, names: Sequence[str], *, log: str) -> None:
        """Removes distributions; those that are not there do not matter."""
        self.heal()
        self._pip("uninstall", ["--yes", *names], log=log)

    def download_source(
        self,
        requirement: str,
        destination: Path,
        *,
        log: str,
        on_detail: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Downloads the source distribution of one requirement, without what it depends on."""
        options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(destination)]
        self._pip("download", [*options, requirement], log=log, on_detail=on_detail)

    def download(self, arguments: Sequence[str], *, on_detail: Callable[[str], None] = lambda text: None) -> None:
        """Downloads with ``pip download`` and these arguments.

        Raises:
            ProvisionError: If pip fails; its class tells why.
        """
        self._pip("download", arguments, log="download", on_detail=on_detail)

    def _pip(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        log: str,
        on_detail: Callable[[str], None] = lambda text: None,
    ) -> commands.Finished:
        reader = PipOutput(on_detail)
        modern = _at_least(self.installed().get("pip", "0"), (24, 1))
        bar = ["--progress-bar", "raw" if modern else "off"] if command != "uninstall" else []
        finished = self.run(["-m", "pip", command, *bar, *arguments], log=log, on_line=reader)
        if finished.returncode:
            raise diagnosis(finished.lines, log=self.log(log), what=f"`pip {command}` for {log}")
        return finished


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return tuple(numbers) >= wanted


class PipOutput:
    """Turns pip's lines into short texts: what is looked up, downloaded (with megabytes) and unpacked."""

    _DOWNLOAD = re.compile(r"\s*Downloading (?:\S*/)?(?P<name>[A-Za-z0-9_.]+?)-(?P<version>\d[^-]*)\S*")
    _COLLECT = re.compile(r"Collecting (?P<name>[A-Za-z0-9_.-]+)")
    _RAW = re.compile(r"Progress (?P<done>\d+) of (?P<all>\d+)")

    def __init__(self, on_detail: Callable[[str], None]) -> None:
        self._on_detail = on_detail
        self._file = ""

    def __call__(self, line: str) -> None:
        """Takes the next line."""
        if match := self._RAW.fullmatch(line.strip()):
            done, everything = int(match["done"]), int(match["all"])
            if everything >= _MEGABYTE:
                self._on_detail(
                    f"downloading {self._file} {done / _MEGABYTE:.0f}/{everything / _MEGABYTE:.0f} MB",
                )
        elif match := self._DOWNLOAD.match(line):
            self._file = f"{match['name']} {match['version']}"
            self._on_detail(f"downloading {self._file}")
        elif match := self._COLLECT.match(line):
            self._on_detail(f"looking up {match['name']}")
        elif line.startswith("WARNING: Retrying"):
            self._on_detail("the package index does not answer, trying again")
        elif line.startswith("Installing collected packages:"):
            count = line.count(",") + 1
            self._on_detail(f"unpacking {count} package{'s' if count > 1 else ''}")


def diagnosis(lines: Sequence[str], *, log: Path, what: str) -> ProvisionError:
    """The error that describes why pip, or a build it ran, ended badly."""
    text = "\n".join(lines)
    again = "then run the same command again: finished steps are kept"
    if any(mark in text for mark in _NO_SPACE):
        return OutOfSpace(
            f"{what} failed: no space left on the disk",
            f"Free some space (`pip cache purge` may help), {again}.",
        )
    if any(mark in text for mark in _NO_CERTIFICATE):
        return IndexUnreachable(
            f"{what} failed: the package index's TLS certificate is not trusted here",
            f"Point PIP_CERT at your organisation's CA bundle, {again}.",
        )
    if any(mark in text for mark in _NO_NETWORK):
        return IndexUnreachable(
            f"{what} failed: the package index cannot be reached",
            f"Check the network, and pip's proxy and index settings (`pip config list`), {again}.",
        )
    match = _NO_VERSION.search(text)
    if match and "(from versions: none)" in text:
        # What pip says without PIP_RETRIES, too: it then does not mention the connection.
        return IndexUnreachable(
            f"{what} failed: the package index cannot be reached, or has no {match['requirement'].strip()} at all",
            f"Check the network, and pip's proxy and index settings (`pip config list`), {again}.",
        )
    if match:
        return RequirementUnavailable(
            f"{what} failed: the package index has no {match['requirement'].strip()} for this Python and platform",
            f"Use a Python that has it, or check the index settings (`pip config list`), {again}.",
        )
    tail = [line for line in lines if line.strip()][-15:]
    return CommandFailed(f"{what} failed", f"The whole output is in {log}.", log=log, tail=tail)
