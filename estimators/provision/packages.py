"""The packages of an environment: what is installed, and installing with uv."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from estimators.provision import commands, uv
from estimators.provision.errors import IndexUnreachable, ProvisionError, VenvUnavailable, diagnosis
from estimators.provision.progress import SILENT, Progress

_DIST_INFO = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")

#: A requirement of one extra, as the metadata of an installed package has it.
_OF_EXTRA = re.compile(r"""(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w.-]+)['"]\s*""")


def extras() -> dict[str, list[str]]:
    """Return the extras of the fleetfit that runs this, and what each asks for, in pip's syntax.

    Raises:
        ProvisionError: If it is not installed, but runs from its folder.
    """
    import importlib.metadata

    try:
        declared = importlib.metadata.requires("fleetfit") or []
    except importlib.metadata.PackageNotFoundError:
        raise ProvisionError(
            "fleetfit is not installed in this Python, so its extras are not known",
            "Install fleetfit first: run `pip install .` in fleetfit's folder.",
        ) from None
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_OF_EXTRA.fullmatch, declared)):
        found.setdefault(match["extra"], []).append(match["requirement"])
    return found


def normalized(name: str) -> str:
    """Return a distribution's name in the form that folders of installed ones have: lower case with underscores."""
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
        variables: Variables for uv, over pip's settings and the user's own.
    """

    prefix: Path
    python: Path
    packages: Path
    state: Path
    lock: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_venv(cls, prefix: Path, *, lock: int | None = None) -> Installation:
        """Return the installation of a venv, found without running its Python.

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
        return {
            **uv.without_misleading(os.environ),
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
        progress: Progress = SILENT,
    ) -> commands.CommandResult:
        """Run this installation's Python with the arguments; the output goes to ``state/logs/<log>.log``."""
        return commands.run(
            [str(self.python), *arguments],
            log=self.log(log),
            environment=self.environment() if environment is None else environment,
            inherit=[] if self.lock is None else [self.lock],
            on_line=progress.output,
        )

    def log(self, name: str) -> Path:
        """Return the file that the output of a step goes to."""
        return self.state / "logs" / f"{name}.log"

    def install(
        self,
        requirements: Sequence[str],
        *,
        log: str,
        options: Sequence[str] = (),
        progress: Progress = SILENT,
    ) -> commands.CommandResult:
        """Install requirements with uv; without a network, from its cache.

        Args:
            requirements: What to install, in pip's syntax; ``-e`` goes before a folder.
            log: Name of the log.
            options: More options of ``uv pip install``.
            progress: Told what is being downloaded, and how long it took.

        Raises:
            ProvisionError: If uv fails; its class tells why.
        """
        try:
            return self._uv("install", [*options, *requirements], log=log, progress=progress)
        except IndexUnreachable:
            try:
                return self._uv("install", ["--offline", *options, *requirements], log=log, progress=progress)
            except ProvisionError:
                pass
            raise

    def would_install(self, requirements: Sequence[str], *, options: Sequence[str] = ()) -> str:
        """Return what uv lists that installing requirements would bring; nothing is installed.

        Raises:
            ProvisionError: If uv fails; its class tells why.
        """
        return "\n".join(self.install(requirements, log="plan", options=["--dry-run", *options]).lines)

    def uninstall(self, names: Sequence[str], *, log: str) -> None:
        """Remove distributions; those that are not there do not matter."""
        self._uv("uninstall", names, log=log)

    def _uv(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        log: str,
        progress: Progress = SILENT,
    ) -> commands.CommandResult:
        program = uv.program(self.log("uv"), progress)
        settings = uv.environment(self.log("uv"))
        if command == "install" and settings.pop(uv.NO_INDEX, "0").lower() in ("1", "true", "yes", "on"):
            arguments = ["--no-index", *arguments]
        unfinished = self.state / "unfinished"
        was_killed = unfinished.exists()
        if was_killed and command == "install":
            # uv takes a package for installed if the package's metadata is there, whatever else is not.
            arguments = ["--reinstall", *arguments]
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        finished = commands.run(
            [program, "pip", command, "--python", str(self.python), *arguments],
            log=self.log(log),
            environment=self.environment(**{**settings, **self.variables}),
            inherit=[] if self.lock is None else [self.lock],
            on_line=progress.output,
        )
        error = None
        if finished.returncode:
            error = diagnosis(finished.lines, log=self.log(log), what=f"`uv pip {command}` for {log}")
        is_whole = isinstance(error, IndexUnreachable) or error is None  # nothing is installed before all is there
        if is_whole and (not was_killed or (error is None and command == "install" and "--dry-run" not in arguments)):
            unfinished.unlink()
        if error is not None:
            raise error
        return finished

    def download_source(
        self,
        requirement: str,
        destination: Path,
        *,
        log: str,
        progress: Progress = SILENT,
    ) -> None:
        """Download the source distribution of one requirement, without what it depends on."""
        options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(destination)]
        self._pip("download", [*options, requirement], log=log, progress=progress)

    def download(self, arguments: Sequence[str], *, progress: Progress = SILENT) -> None:
        """Download with ``pip download`` and these arguments.

        Raises:
            ProvisionError: If pip fails; its class tells why.
        """
        self._pip("download", arguments, log="download", progress=progress)

    def _pip(self, command: str, arguments: Sequence[str], *, log: str, progress: Progress) -> commands.CommandResult:
        argv = ["-m", "pip", command, "--progress-bar", "off", *arguments]
        finished = self.run(argv, log=log, progress=progress)
        if finished.returncode:
            raise diagnosis(finished.lines, log=self.log(log), what=f"`pip {command}` for {log}")
        return finished
