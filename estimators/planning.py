"""Predict the time and the cost of a training on a fleet, and recommend a strategy and a fleet for a training."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
