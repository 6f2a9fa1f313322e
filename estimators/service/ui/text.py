"""How the pages say things."""

from __future__ import annotations

import time


def when(seconds: float | None) -> str:
    """Return a moment in this machine's time."""
    return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
