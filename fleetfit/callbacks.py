"""Export the names of :mod:`estimators.callbacks`."""

from estimators.callbacks import *  # noqa: F403
