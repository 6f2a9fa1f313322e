"""What provisioning has finished in a venv, so that the next run starts where the last one ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from container.system.files import read_json, write_json

_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class FinishedStep:
    """A step that ended well.

    Attributes:
        key: What it was asked to do; another key means to do it again.
        packages: Distributions it put there, with their versions.
    """

    key: str
    packages: Mapping[str, str] = field(default_factory=dict)

    def holds(self, key: str, installed: Mapping[str, str]) -> bool:
        """Return whether the same is asked again and what the step installed is still there, unchanged."""
        return self.key == key and all(installed.get(name) == version for name, version in self.packages.items())


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The finished steps by name, and the extras that were ever asked for."""

    steps: Mapping[str, FinishedStep] = field(default_factory=dict)
    extras: frozenset[str] = frozenset()

    def with_step(self, name: str, finished: FinishedStep) -> Stamp:
        """This stamp and one more finished step."""
        return replace(self, steps={**self.steps, name: finished})

    def without_step(self, name: str) -> Stamp:
        """This stamp without a step, as it must be on disk while the step runs."""
        return replace(self, steps={other: done for other, done in self.steps.items() if other != name})

    def save(self, path: Path) -> None:
        """Write the stamp in one step: a reader sees the old one or this one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        steps = {name: {"key": done.key, "packages": dict(done.packages)} for name, done in self.steps.items()}
        write_json(path, {"schema": _SCHEMA, "extras": sorted(self.extras), "steps": steps})

    @classmethod
    def load(cls, path: Path) -> Stamp | None:
        """Return the saved stamp; None if there is none. One that cannot be read counts as "nothing is finished"."""
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
