"""Export the names of :mod:`estimators.inputs`."""

from estimators.inputs import *  # noqa: F403
