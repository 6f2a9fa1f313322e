"""Export the names of :mod:`estimators.analytics`."""

from estimators.analytics import *  # noqa: F403
