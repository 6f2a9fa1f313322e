"""A cost model, its calibration by a short run, and the best strategy: :func:`estimators.planning.recommend`."""
