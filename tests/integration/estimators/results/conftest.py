"""A home for the jobs of a test."""

from __future__ import annotations

from homes import home

__all__ = ["home"]
