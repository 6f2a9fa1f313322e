"""Provide the input channels of ``fit()``, with the class names of ``sagemaker.inputs``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
