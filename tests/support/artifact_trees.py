"""Hosts' trees whose models and outputs tests collect."""

from __future__ import annotations

from pathlib import Path

from container.agent.artifacts import collect
from container.contract.wire import Event, decode_line


class Job:
    """Hosts' trees, and what collecting them says."""

    def __init__(self, root: Path, hosts: int = 2) -> None:
        self.bases = [root / f"algo-{i + 1}" / "ml" for i in range(hosts)]
        for base in self.bases:
            (base / "model").mkdir(parents=True)
            (base / "output" / "data").mkdir(parents=True)
        self.output = root / "out" / "job" / "output"
        self.lines: list[bytes] = []

    def write(self, host: int, name: str, content: str = "x") -> Path:
        path = self.bases[host] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def collect(self) -> tuple[Path | None, Path | None]:
        model, output = collect(self.bases, str(self.output), tell=self.lines.append)
        return Path(model) if model else None, Path(output) if output else None

    @property
    def events(self) -> list[Event]:
        events = [decode_line(line) for line in self.lines]
        assert all(isinstance(event, Event) for event in events)
        return events  # type: ignore[return-value]

    @property
    def warnings(self) -> list[str]:
        return [event.data["message"] for event in self.events if event.kind == "warning"]
