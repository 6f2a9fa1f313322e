"""Provide the metrics of jobs as DataFrames, with the class names of ``sagemaker.analytics``."""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
