"""Provide functions that run as jobs, with the names of ``sagemaker.remote_function``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
