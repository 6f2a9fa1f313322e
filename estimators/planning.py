"""Provide predictions before a training: the best strategy and fleet, and the time and cost of a fleet."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
