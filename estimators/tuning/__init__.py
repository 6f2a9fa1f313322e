"""Hyperparameter tuning: a study of many training jobs, in SageMaker's terms, with Optuna as sampler and pruner.

A tuning job has a folder of its own, ``$FLEETFIT_HOME/tuning/<name>/``, and a process of its own that survives the
caller. Its trials are ordinary training jobs.
"""
