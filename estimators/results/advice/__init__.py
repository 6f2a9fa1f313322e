"""Recommend a strategy (:func:`estimators.planning.recommend`), with a cost model that a short run calibrates."""
