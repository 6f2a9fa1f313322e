"""Builds the :class:`estimators.results.result.Result` of a job from its record, and displays it."""
