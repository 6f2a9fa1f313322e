"""Record the completed steps of provisioning in a venv, so that the next run continues where the last one stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from container.system.files import read_json, write_json

_SCHEMA = 1
#: Old names of extras, which older environments' stamps still contain -> today's names.
RENAMED_EXTRAS = {"ui": "service"}


@dataclass(frozen=True, kw_only=True)
class FinishedStep:
    """A completed step.

    Attributes:
        key: A text that contains everything on which the step's result depends. If the key changes, the step must run
            again.
        packages: The distributions that the step installed, as a mapping from names to versions.
    """

    key: str
    packages: Mapping[str, str] = field(default_factory=dict)

    def holds(self, key: str, installed: Mapping[str, str]) -> bool:
        """Return whether the step's key and the distributions that the step installed are unchanged."""
        return self.key == key and all(installed.get(name) == version for name, version in self.packages.items())


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The record in a venv: the completed steps by name, and all extras requested since the venv was created."""

    steps: Mapping[str, FinishedStep] = field(default_factory=dict)
    extras: frozenset[str] = frozenset()

    def with_step(self, name: str, finished: FinishedStep) -> Stamp:
        """Return this stamp with an additional completed step."""
        return replace(self, steps={**self.steps, name: finished})

    def without_step(self, name: str) -> Stamp:
        """Return this stamp without a step. While a step runs, the stamp without this step is saved. Therefore an
        interrupted step runs again.
        """
        return replace(self, steps={other: done for other, done in self.steps.items() if other != name})

    def with_known(self, known: Collection[str]) -> Stamp:
        """Return this stamp with only the extras in ``known``. Extras that were renamed get their new names first."""
        extras = {RENAMED_EXTRAS.get(extra, extra) for extra in self.extras}
        return replace(self, extras=frozenset(extras.intersection(known)))

    def save(self, path: Path) -> None:
        """Write the stamp to a file atomically: a reader gets either the old or the new stamp, and never a part."""
        path.parent.mkdir(parents=True, exist_ok=True)
        steps = {name: {"key": done.key, "packages": dict(done.packages)} for name, done in self.steps.items()}
        write_json(path, {"schema": _SCHEMA, "extras": sorted(self.extras), "steps": steps})

    @classmethod
    def load(cls, path: Path) -> Stamp | None:
        """Return the saved stamp, or None if the file does not exist.

        If the file is damaged or has another format, return a stamp without steps.
        """
        if not path.exists():
            return None
        try:
            document = read_json(path)
            if document["schema"] != _SCHEMA:
                return cls()
            steps = {
                name: FinishedStep(key=done["key"], packages=dict(done["packages"]))
                for name, done in document["steps"].items()
            }
            return cls(steps=steps, extras=frozenset(document["extras"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()
