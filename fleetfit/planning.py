"""Export the names of :mod:`estimators.planning`."""

from estimators.planning import *  # noqa: F403
