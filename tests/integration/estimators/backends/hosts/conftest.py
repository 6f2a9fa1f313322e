"""A loop."""

from __future__ import annotations

from loops import loop, run_until

__all__ = ["loop", "run_until"]
