"""Errors that both sides of a job raise; :mod:`estimators.job.errors` has the rest of the tree."""

from __future__ import annotations


class FleetfitError(Exception):
    """Base class of the errors that fleetfit raises on purpose."""


class ConfigurationError(FleetfitError, ValueError):
    """An argument, a file or a request is wrong; nothing has been started."""


class OptionError(ConfigurationError, TypeError):
    """An option does not exist, was not given by its name, or has the wrong type."""


class AgentError(Exception):
    """The host agent cannot do something that the job needs; the message is one line with the remedy."""


class DistributedError(RuntimeError):
    """The processes cannot train together; the message says why and what to do."""


class WeightsDifferError(DistributedError):
    """The ranks' weights differ, although a synchronous strategy keeps them equal."""


class RefusedError(DistributedError):
    """The request does not work with this strategy or this Keras, and would have failed silently."""
