"""Build the :class:`estimators.results.result.Result` of a job from its record, and display the result."""
