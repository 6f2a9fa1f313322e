"""Hosts' trees that the agent prepares, or whose models and outputs it packs, in this process."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from container.agent import channels
from container.agent.artifacts import collect
from container.contract.channels import HostChannel
from container.contract.wire import Event, Piece, decode_line
from estimators.client.printing import LogPrinter
from estimators.records.logs import LogLine


class Trees:
    """Hosts' trees, and what preparing them says."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.bases = [root / f"algo-{number}" for number in range(1, hosts + 1)]
        self.lines: list[bytes] = []

    def prepare(self, *wanted: HostChannel) -> None:
        """Prepare the channels of all hosts."""
        self.lines.clear()
        channels.prepare(self.bases, wanted, tell=self.lines.append)

    def files(self, host: int, channel: str = "train") -> dict[str, bytes]:
        """Return a host's files of a channel."""
        root = self.bases[host] / "input/data" / channel
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    @property
    def warnings(self) -> list[str]:
        """The warnings of the last time."""
        events = [item for item in map(decode_line, self.lines) if isinstance(item, Event)]
        return [event.data["message"] for event in events if event.kind == "warning"]

    @property
    def words(self) -> str:
        """What was printed the last time."""
        return b"".join(piece.data for piece in pieces(self.lines)).decode()


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


def pieces(lines: list[bytes]) -> list[Piece]:
    """Return the printed pieces of an agent's lines."""
    return [item for item in map(decode_line, lines) if isinstance(item, Piece)]


def shown(lines: list[bytes], screen: io.StringIO) -> str:
    """Return what a user sees of an agent's lines."""
    printer = LogPrinter(screen, colour=False)
    for number, piece in enumerate(pieces(lines)):
        printer.print([LogLine(number, piece.host, piece.process, 0, piece.data)])
    printer.finish()
    return screen.getvalue()


def content(number: int, size: int = 1000) -> bytes:
    """Return bytes that look random, the same for each number."""
    return hashlib.shake_128(str(number).encode()).digest(size)
