"""From a job's record to its :class:`estimators.result.Result`, and what is shown of it."""
