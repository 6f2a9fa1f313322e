"""fleetfit: one Estimator, every distribution strategy, any fleet.

::

    from estimators import TensorFlow, MPI

    estimator = TensorFlow(
        entry_point="train.py",
        source_dir="entrypoints",
        instance_count=2,
        distribution=MPI(processes_per_host=2),
        hyperparameters={"epochs": 4, "batch-size": 256},
    )
    job = estimator.fit({"train": "data/digits"})

The estimators, strategies, handles, results and errors are here; the modules have the rest by subject, and the SDK's
module names where the SDK has such a module: ``from estimators.tuner import HyperparameterTuner``. Names are imported
when they are used, so that importing the package is quick.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
