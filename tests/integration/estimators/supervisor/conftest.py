"""Every test that asks for it has a home of its own, and leaves no process behind."""

from __future__ import annotations

from homes import home

__all__ = ["home"]
