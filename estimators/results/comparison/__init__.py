"""Compares runs: :func:`estimators.compare` and the value that it returns."""
