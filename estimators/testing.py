"""Simulate jobs without hosts, for tests of code that starts trainings: ``instance_type="local_fake"``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
