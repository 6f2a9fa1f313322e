"""Export the names of :mod:`estimators.testing`."""

from estimators.testing import *  # noqa: F403
