"""Provide the search for hyperparameters, with the class names of ``sagemaker.tuner``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
