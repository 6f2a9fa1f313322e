"""A home for each test's jobs."""

from __future__ import annotations

from homes import home

__all__ = ["home"]
