"""Provide the callbacks of ``fit(callbacks=…)``: trackers, notifications, resizing, and the base class for users'
callbacks.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
