"""Which strategy? A cost model, its calibration by a short run, and what follows: :func:`estimators.recommend`."""
