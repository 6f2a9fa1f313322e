"""Look for an engine's package without importing it."""

from __future__ import annotations

import dataclasses
import importlib.metadata

from estimators.backends.hosts.provider import Finding


@dataclasses.dataclass(frozen=True)
class EnginePackage:
    """Name an engine's package.

    Attributes:
        title: The engine's name in messages.
        package: The distribution's name.
        oldest: The oldest version that is supported.
        extra: The extra of fleetfit that installs it.
        note: Addition to the required version, in messages.
    """

    title: str
    package: str
    oldest: tuple[int, int]
    extra: str
    note: str = ""

    @property
    def remedy(self) -> str:
        """Return the command that installs the package."""
        return f"`fleetfit install {self.extra}`"

    @property
    def version(self) -> str | None:
        """Return the installed version; None if there is none."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def refusal(self) -> str | None:
        """Return why the engine cannot be used here, with the remedy; None if it can."""
        version = self.version
        if version is None:
            return f"{self.title} is not installed here. Run {self.remedy}."
        if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < self.oldest:
            needed = f"{'.'.join(map(str, self.oldest))} or newer is needed{self.note}"
            return f"{self.title} {version} is installed here, but {needed}: run {self.remedy}."
        return None

    def finding(self, name: str, purpose: str, where: str = "") -> Finding:
        """Return the line of ``fleetfit doctor``.

        Args:
            name: The line's name.
            purpose: What the engine is for.
            where: Addition to the version, if the engine can be used.
        """
        if self.version is None:
            return Finding(name=name, ok=None, text=f"not installed; run {self.remedy} for {purpose}")
        if (reason := self.refusal()) is not None:
            return Finding(name=name, ok=False, text=reason, remedy=self.remedy)
        return Finding(name=name, ok=True, text=f"{self.title} {self.version}{where and f'; {where}'}")
