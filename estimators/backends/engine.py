"""Find the Python package of a cluster engine (Ray, Spark) without importing the package."""

from __future__ import annotations

from container.contract.frozen import dataclass
from estimators.backends.hosts.provider import Finding


@dataclass(frozen=True)
class EnginePackage:
    """The Python package of a cluster engine (Ray, Spark).

    Attributes:
        title: The engine's name in messages.
        package: The name of the package's distribution.
        oldest: The oldest supported version: major and minor number.
        extra: The name of fleetfit's extra that installs the package.
        note: A text that messages add after the required version.
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
        """Return the installed version of the package. Return None if the package is not installed."""
        from estimators.records.provenance.packages import versions

        return versions((self.package,)).get(self.package)

    def refusal(self) -> str | None:
        """Return why the engine cannot be used in this environment, with the remedy. Return None if the engine can be
        used.
        """
        version = self.version
        if version is None:
            return f"{self.title} is not installed here. Run {self.remedy}."
        if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < self.oldest:
            needed = f"{'.'.join(map(str, self.oldest))} or newer is needed{self.note}"
            return f"{self.title} {version} is installed here, but {needed}: run {self.remedy}."
        return None

    def finding(self, name: str, purpose: str, where: str = "") -> Finding:
        """Return the engine's line in the output of ``fleetfit doctor``.

        Args:
            name: The name of the line.
            purpose: A description of what the engine is used for.
            where: A text that is added after the version if the engine can be used.
        """
        if self.version is None:
            return Finding(name=name, ok=None, text=f"not installed; run {self.remedy} for {purpose}")
        if (reason := self.refusal()) is not None:
            return Finding(name=name, ok=False, text=reason, remedy=self.remedy)
        return Finding(name=name, ok=True, text=f"{self.title} {self.version}{where and f'; {where}'}")
