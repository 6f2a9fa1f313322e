"""Export the names of :mod:`estimators.faults`."""

from estimators.faults import *  # noqa: F403
