"""Provide the faults that can be injected to test a job's reaction: ``fit(faults=[Kill(rank=1, at_step=50)])``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
