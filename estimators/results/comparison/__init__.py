"""Compare runs with :func:`estimators.compare`, which returns a :class:`Comparison`."""
