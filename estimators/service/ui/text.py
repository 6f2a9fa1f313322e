"""Format values for the pages."""

from __future__ import annotations

import time


def when(seconds: float | None) -> str:
    """Format a time in this machine's time zone. Return ``–`` for None."""
    return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
