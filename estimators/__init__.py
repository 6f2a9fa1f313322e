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

This package has the estimators, strategies, handles, results and errors. The modules have the other names by subject.
A module has the name of the SageMaker SDK's module if there is such a module: ``from estimators.tuner import
HyperparameterTuner``. Names are imported when they are first used, so that the import of the package is fast.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
