"""Runs side by side: :func:`estimators.compare` and what it gives."""
