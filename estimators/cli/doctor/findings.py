"""What ``fleetfit doctor`` reports: findings, each with its remedy, and their text."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class Verdict(enum.Enum):
    """How a finding is to be taken."""

    OK = "ok"
    INFO = "info"  # nothing to do, but good to know
    WARNING = "warning"  # works, perhaps not as meant
    MISSING = "missing"  # something that is wanted cannot be used
    ABSENT = "absent"  # not there, and nothing asks for it


@dataclasses.dataclass(frozen=True)
class ReportLine:
    """One line of the report.

    Attributes:
        name: What it is about.
        state: How to take it.
        text: Version, place, or what is the matter.
        remedy: What to do about it, if anything.
    """

    name: str
    state: Verdict
    text: str
    remedy: str | None = None

    @classmethod
    def ok(cls, name: str, text: str) -> ReportLine:
        """Return a line about what is as it should be."""
        return cls(name, Verdict.OK, text)

    @classmethod
    def info(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line that is good to know."""
        return cls(name, Verdict.INFO, text, remedy)

    @classmethod
    def warning(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about what works, perhaps not as meant."""
        return cls(name, Verdict.WARNING, text, remedy)

    @classmethod
    def missing(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about what is wanted and cannot be used."""
        return cls(name, Verdict.MISSING, text, remedy)

    @classmethod
    def absent(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about what is not there, and nothing asks for."""
        return cls(name, Verdict.ABSENT, text, remedy)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        return {**dataclasses.asdict(self), "state": self.state.value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """Everything that was found.

    Attributes:
        software: What is installed.
        machine: What the machine offers.
        strategies: What each strategy lacks.
        backends: What each backend lacks.
        remarks: What to know about running trainings here.
    """

    software: tuple[ReportLine, ...]
    machine: tuple[ReportLine, ...]
    strategies: tuple[ReportLine, ...]
    backends: tuple[ReportLine, ...]
    remarks: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether every strategy and backend of this version can be used."""
        return not any(finding.state is Verdict.MISSING for finding in (*self.strategies, *self.backends))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        sections = {name: [finding.to_dict() for finding in findings] for name, findings in self._sections()}
        return {"healthy": self.healthy, **sections, "remarks": list(self.remarks)}

    def _sections(self) -> list[tuple[str, tuple[ReportLine, ...]]]:
        return [
            ("software", self.software),
            ("machine", self.machine),
            ("strategies", self.strategies),
            ("backends", self.backends),
        ]

    def to_text(self, *, colour: bool = False) -> str:
        """Return the report for people."""
        lines: list[str] = []
        width = max(len(finding.name) for _, findings in self._sections() for finding in findings)
        for title, findings in self._sections():
            lines.append(_paint(title.capitalize(), "1", colour))
            for finding in findings:
                mark, code = _MARKS[finding.state]
                lines.append(f"  {_paint(mark, code, colour)} {finding.name:<{width}}  {finding.text}")
                if finding.remedy is not None:
                    lines.append(f"  {'':{width + 4}}→ {finding.remedy}")
            lines.append("")
        lines.append(_paint("Remarks", "1", colour))
        lines += [f"  • {remark}" for remark in self.remarks]
        return "\n".join(lines) + "\n"


_MARKS = {
    Verdict.OK: ("✓", "32"),
    Verdict.INFO: ("·", "2"),
    Verdict.WARNING: ("!", "33"),
    Verdict.MISSING: ("✗", "31"),
    Verdict.ABSENT: ("–", "2"),
}


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
