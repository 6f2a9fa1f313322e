"""Export the names of :mod:`estimators.tuner`."""

from estimators.tuner import *  # noqa: F403
