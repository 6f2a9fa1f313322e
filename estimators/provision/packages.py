"""List the packages of an environment, and install packages with uv."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from estimators.provision import commands, uv
from estimators.provision.errors import IndexUnreachable, ProvisionError, VenvUnavailable, diagnosis
from estimators.provision.progress import SILENT, ProgressDisplay

_DIST_INFO = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")

#: Matches a requirement that belongs to an extra, in the metadata of an installed package.
_OF_EXTRA = re.compile(r"""(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w.-]+)['"]\s*""")


def extras() -> dict[str, list[str]]:
    """Return the requirements of each extra of the running fleetfit, in pip's syntax.

    Raises:
        ProvisionError: fleetfit runs from its folder and is not installed.
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
    """Return a distribution's name as it occurs in the name of the installed distribution's folder.

    The result has lower-case letters, and underscores in place of ``-`` and ``.``.
    """
    return re.sub(r"[-_.]+", "_", name).lower()


def named(requirement: str) -> str:
    """Return the normalized name of the distribution that a requirement or the path of a wheel names."""
    name = requirement.partition(" @ ")[0]
    if name.endswith(".whl"):
        name = os.path.basename(name).partition("-")[0]
    return normalized(re.split(r"[\[<>=!~; ]", name, maxsplit=1)[0])


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A Python environment in which packages can be installed.

    Attributes:
        prefix: The root folder, with ``bin`` and ``lib``.
        python: The interpreter.
        packages: The site-packages folder.
        state: The folder for the logs of installations.
        lock: The descriptor of a lock that child processes inherit, or None.
        variables: Environment variables for uv. These variables override pip's settings and the user's variables.
    """

    prefix: Path
    python: Path
    packages: Path
    state: Path
    lock: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_venv(cls, prefix: Path, *, lock: int | None = None) -> Installation:
        """Return the installation in a venv. The venv's Python is not run.

        Raises:
            VenvUnavailable: the folder is not a venv.
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
        """Return the installed distributions as a mapping from normalized names to versions.

        Names and versions are taken from the names of the distributions' folders.
        """
        matches = (_DIST_INFO.fullmatch(name) for name in os.listdir(self.packages))
        return {normalized(match["name"]): match["version"] for match in matches if match}

    def environment(self, **extra: str) -> dict[str, str]:
        """Return environment variables for running the installation's programs. These programs are first in PATH.

        Args:
            **extra: Additional variables.
        """
        return {
            **uv.without_misleading(os.environ),
            "PATH": os.pathsep.join([str(self.prefix / "bin"), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(self.prefix),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            # Without a network, pip's default of five retries takes minutes, because pip retries each package.
            "PIP_RETRIES": os.environ.get("PIP_RETRIES", "2"),
            **extra,
        }

    def run(
        self,
        arguments: Sequence[str],
        *,
        log: str,
        environment: Mapping[str, str] | None = None,
        progress: ProgressDisplay = SILENT,
    ) -> commands.CommandResult:
        """Run the installation's Python with arguments. The output is appended to ``state/logs/<log>.log``."""
        return commands.run(
            [str(self.python), *arguments],
            log=self.log(log),
            environment=self.environment() if environment is None else environment,
            inherit=[] if self.lock is None else [self.lock],
            on_line=progress.output,
        )

    def log(self, name: str) -> Path:
        """Return the path of a step's log file."""
        return self.state / "logs" / f"{name}.log"

    def install(
        self,
        requirements: Sequence[str],
        *,
        log: str,
        options: Sequence[str] = (),
        progress: ProgressDisplay = SILENT,
    ) -> commands.CommandResult:
        """Install requirements with uv. If the package index cannot be reached, install from uv's cache.

        Args:
            requirements: The requirements in pip's syntax. For an editable install, ``-e`` precedes the folder.
            log: The name of the log.
            options: More options of ``uv pip install``.
            progress: The display that shows downloads and other steps of uv.

        Raises:
            ProvisionError: uv failed. The error's class shows the cause.
        """
        try:
            return self._uv("install", requirements, options=options, log=log, progress=progress)
        except IndexUnreachable:
            try:
                return self._uv("install", requirements, options=["--offline", *options], log=log, progress=progress)
            except ProvisionError:
                pass
            raise

    def would_install(self, requirements: Sequence[str], *, options: Sequence[str] = ()) -> str:
        """Return uv's list of the packages that it would install for the given requirements. Nothing is installed.

        Raises:
            ProvisionError: uv failed. The error's class shows the cause.
        """
        return "\n".join(self.install(requirements, log="plan", options=["--dry-run", *options]).lines)

    def interrupted(self) -> str | None:
        """Return a warning about incomplete packages if an earlier installation was killed. Otherwise return None."""
        names = self._unfinished()
        if not names:
            return None
        return (
            f"an earlier installation was interrupted, so packages may be incomplete ({', '.join(sorted(names))}). Run "
            "the interrupted command again."
        )

    def uninstall(self, names: Sequence[str]) -> None:
        """Remove distributions. Names of distributions that are not installed are ignored."""
        self._uv("uninstall", names, log="packages")

    def _uv(
        self,
        command: str,
        requirements: Sequence[str],
        *,
        log: str,
        options: Sequence[str] = (),
        progress: ProgressDisplay = SILENT,
    ) -> commands.CommandResult:
        program = uv.program(self.log("uv"), progress)
        settings = uv.environment(self.log("uv"))
        arguments = [*options, *requirements]
        if command == "install" and settings.pop(uv.NO_INDEX, "0").lower() in ("1", "true", "yes", "on"):
            arguments = ["--no-index", *arguments]
        if command == "install" and self._unfinished() is not None:
            # If an installation was killed, install again: uv considers a package installed if its metadata exists,
            # even if other files are missing.
            arguments = ["--reinstall", *arguments]
        with contextlib.nullcontext() if "--dry-run" in options else self._marked(command, requirements):
            finished = commands.run(
                [program, "pip", command, "--python", str(self.python), *arguments],
                log=self.log(log),
                environment=self.environment(**{**settings, **self.variables}),
                inherit=[] if self.lock is None else [self.lock],
                on_line=progress.output,
            )
            if finished.returncode:
                raise diagnosis(finished.lines, log=self.log(log), what=f"`uv pip {command}` for {log}")
        return finished

    @property
    def _marker(self) -> Path:
        return self.state / "unfinished"

    def _unfinished(self) -> frozenset[str] | None:
        """Return the names of the packages whose installation was killed. Return None if no installation was killed."""
        try:
            return frozenset(self._marker.read_text(encoding="utf-8").split("\n")) - {""}
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _marked(self, command: str, requirements: Sequence[str]) -> Iterator[None]:
        """Mark the required packages as unfinished while uv runs.

        The mark is a file with the names of the packages. The file stays if this process is killed, or if uv fails
        after it has changed the environment. The next installation then reinstalls its packages.

        After success, these names are deleted from the file, and a file without names is removed. There is one
        exception: if a removal deletes the last names of an earlier mark, the empty file stays until the next
        installation, because dependencies of the removed packages may still be incomplete.
        """
        before = self._unfinished()
        names = {named(requirement) for requirement in requirements}
        self._mark((before or frozenset()) | names)
        changed = self.packages.stat().st_mtime_ns  # the first change that uv makes is in this folder
        try:
            yield
        except BaseException:
            if self.packages.stat().st_mtime_ns == changed:
                self._mark(before)
            raise
        left = (before or frozenset()) - names
        self._mark(None if not left and (command == "install" or before is None) else left)

    def _mark(self, names: frozenset[str] | None) -> None:
        if names is None:
            self._marker.unlink(missing_ok=True)
        else:
            self._marker.parent.mkdir(parents=True, exist_ok=True)
            self._marker.write_text("\n".join(sorted(names)), encoding="utf-8")

    def download(self, arguments: Sequence[str], *, log: str, progress: ProgressDisplay = SILENT) -> None:
        """Run ``pip download`` with the given arguments.

        Raises:
            ProvisionError: pip failed. The error's class shows the cause.
        """
        argv = ["-m", "pip", "download", "--progress-bar", "off", *arguments]
        finished = self.run(argv, log=log, progress=progress)
        if finished.returncode:
            raise diagnosis(finished.lines, log=self.log(log), what=f"`pip download` for {log}")
