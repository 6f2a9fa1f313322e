"""Define the findings of ``fleetfit doctor`` and their remedies, and format the findings as text."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from container.contract.frozen import dataclass
from estimators.cli.translating import in_options
from estimators.results import tables


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    INFO = "info"  # needs no action
    WARNING = "warning"  # works, but possibly not as intended
    MISSING = "missing"  # needed, but cannot be used
    ABSENT = "absent"  # not installed, and not needed


@dataclass(frozen=True)
class ReportLine:
    """One line of the report of ``fleetfit doctor``.

    Attributes:
        name: The subject, such as a package.
        state: The severity.
        text: The version, the path, or the description of the problem.
        remedy: The action that solves the problem, or None.
    """

    name: str
    state: Verdict
    text: str
    remedy: str | None = None

    @classmethod
    def ok(cls, name: str, text: str) -> ReportLine:
        """Return a line about software that works."""
        return cls(name, Verdict.OK, text)

    @classmethod
    def info(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line that informs the user and reports no problem."""
        return cls(name, Verdict.INFO, text, remedy)

    @classmethod
    def warning(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about software that works, but perhaps not as intended."""
        return cls(name, Verdict.WARNING, text, remedy)

    @classmethod
    def missing(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about software that is required and cannot be used."""
        return cls(name, Verdict.MISSING, text, remedy)

    @classmethod
    def absent(cls, name: str, text: str, remedy: str | None = None) -> ReportLine:
        """Return a line about software that is not installed and not required."""
        return cls(name, Verdict.ABSENT, text, remedy)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable form."""
        return {**dataclasses.asdict(self), "state": self.state.value}


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """The complete report of ``fleetfit doctor``.

    Attributes:
        software: The installed software.
        machine: The resources of the machine.
        strategies: A line for each strategy, which names missing software.
        backends: A line for each backend, which names missing software.
        remarks: General remarks about trainings on this machine.
    """

    software: tuple[ReportLine, ...]
    machine: tuple[ReportLine, ...]
    strategies: tuple[ReportLine, ...]
    backends: tuple[ReportLine, ...]
    remarks: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Return whether every strategy and every backend has the required software.

        Strategies and backends that are not needed (``Verdict.ABSENT``) do not count.
        """
        return not any(finding.state is Verdict.MISSING for finding in (*self.strategies, *self.backends))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable data."""
        sections = {name: [finding.to_dict() for finding in findings] for name, findings in self._sections()}
        return {"healthy": self.healthy, **sections, "remarks": list(self.remarks)}

    def _sections(self) -> list[tuple[str, tuple[ReportLine, ...]]]:
        return [
            ("software", self.software),
            ("machine", self.machine),
            ("strategies", self.strategies),
            ("backends", self.backends),
        ]

    def to_text(self, *, colour: bool = False, columns: int | None = None) -> str:
        """Return the report as text for display.

        Args:
            colour: Whether to colour the marks.
            columns: The width at which sentences are wrapped, in columns. With None, sentences are not wrapped.
        """
        lines: list[str] = []
        width = max(len(finding.name) for _, findings in self._sections() for finding in findings)
        indent = " " * (width + 4)
        room = None if columns is None else columns - len(indent) - 2
        for title, findings in self._sections():
            lines.append(_paint(title.capitalize(), "1", colour))
            for finding in findings:
                mark, code = _MARKS[finding.state]
                first, *more = tables.paragraphs([in_options(finding.text)], room) or [""]
                if finding.remedy is not None:
                    more += tables.paragraphs([f"→ {in_options(finding.remedy)}"], room)
                lines.append(f"  {_paint(mark, code, colour)} {finding.name:<{width}}  {first}")
                lines += [f"  {indent}{line}" for line in more]
            lines.append("")
        lines.append(_paint("Remarks", "1", colour))
        lines += tables.paragraphs([f"• {remark}" for remark in self.remarks], columns, indent="  ")
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
