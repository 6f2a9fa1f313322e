"""The names of :mod:`estimators.planning`."""

from estimators.planning import *  # noqa: F403
