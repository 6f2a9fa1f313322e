"""Train a script with one Estimator, under every distribution strategy and on any fleet of hosts.

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

The package itself exports the estimators, strategies, job handles, results and errors. All other names are exported by
modules, one for each subject. If the SageMaker SDK has a module for the subject, the module has the same name:
``from estimators.tuner import HyperparameterTuner``. Names are imported when they are first used, so that the import of
the package is fast.
"""

from __future__ import annotations

from container.contract.public import exports

__all__, __getattr__, __dir__ = exports(__name__, __file__)
