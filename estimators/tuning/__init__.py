"""Tune hyperparameters: a study of many training jobs, in SageMaker's terms, with Optuna as sampler and pruner.

A tuning job has a folder, ``$FLEETFIT_HOME/tuning/<name>/``, and a process that continues after the caller has ended.
The trials of the tuning job are ordinary training jobs.
"""
