"""A loop on which things are tried."""

from __future__ import annotations

from loops import loop, own_children, run_until

__all__ = ["loop", "own_children", "run_until"]
