"""A progress that a test reads."""

from __future__ import annotations

from estimators.provision.progress import ProgressDisplay


class SeenProgress(ProgressDisplay):
    """Keeps the details of the steps."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def detail(self, text: str) -> None:
        self.seen.append(text)
