"""Tune hyperparameters with many training jobs. The interface follows SageMaker, and Optuna samples and prunes.

A tuning job has a folder, ``$FLEETFIT_HOME/tuning/<name>/``, and a process that continues after the caller has ended.
Each trial of the tuning job is an ordinary training job. In Optuna's terms, a tuning job is a study.
"""

import warnings

# Optuna imports tqdm, which warns in notebooks without ipywidgets. Fleetfit uses no progress bar of tqdm.
warnings.filterwarnings("ignore", message="IProgress not found")
