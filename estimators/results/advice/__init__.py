"""Recommend a strategy (:func:`estimators.planning.recommend`) with a cost model of a training step. `fleetfit
calibrate` fits the model to measured steps.
"""
