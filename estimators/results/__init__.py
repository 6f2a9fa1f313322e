"""From a job's record to its :class:`estimators.results.result.Result`, and what is shown of it."""
