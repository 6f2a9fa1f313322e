"""Export the names of :mod:`estimators.remote_function`."""

from estimators.remote_function import *  # noqa: F403
