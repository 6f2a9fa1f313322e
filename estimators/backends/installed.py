"""Whether the package of an engine is installed here; nothing of it is imported for that."""

from __future__ import annotations

import dataclasses
import importlib.metadata

from estimators.backends.hosts.provider import Finding


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine by its package.

    Attributes:
        title: What it is called.
        package: Its distribution.
        oldest: The oldest version that will do.
        extra: Ours that installs it.
        note: What is said with the version that is needed.
    """

    title: str
    package: str
    oldest: tuple[int, int]
    extra: str
    note: str = ""

    @property
    def remedy(self) -> str:
        """How it is installed."""
        return f"pip install 'fleetfit[{self.extra}]'"

    @property
    def version(self) -> str | None:
        """Its version; None where it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def refusal(self) -> str | None:
        """Return why it cannot be used in this environment, with the remedy; None if it can."""
        if self.version is None:
            return f"{self.title} is not installed here; {self.remedy}."
        if tuple(int(part) for part in self.version.split(".")[:2] if part.isdecimal()) < self.oldest:
            needed = f"{'.'.join(map(str, self.oldest))} or newer is needed{self.note}"
            return f"{self.title} {self.version} is installed here, and {needed}: {self.remedy}."
        return None

    def finding(self, name: str, purpose: str, where: str = "") -> Finding:
        """Return what ``fleetfit doctor`` says of it.

        Args:
            name: What the line is called.
            purpose: What it is for.
            where: What else there is to say where it can be used.
        """
        if self.version is None:
            return Finding(name=name, ok=True, text=f"not installed; {self.remedy} for {purpose}")
        if (reason := self.refusal()) is not None:
            return Finding(name=name, ok=False, text=reason, remedy=self.remedy)
        return Finding(name=name, ok=True, text=f"{self.title} {self.version}{where and f'; {where}'}")
