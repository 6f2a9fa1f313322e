"""What is raised where something that the user wrote is wrong; :mod:`estimators.job.errors` has the rest of the
tree."""

from __future__ import annotations


class FleetfitError(Exception):
    """Base class of the errors that fleetfit raises on purpose."""


class ConfigurationError(FleetfitError, ValueError):
    """An argument, a file or a request is wrong; nothing has been started."""


class OptionError(ConfigurationError, TypeError):
    """There is no such option, or it was not given by its name, or something of another type was given."""


class AgentError(Exception):
    """Something that the job needs cannot be done; the message is one line that names it and the remedy."""


class DistributedError(RuntimeError):
    """The processes cannot train together; the message says why and what to do."""


class WeightsDifferError(DistributedError):
    """The weights of the ranks, which a synchronous strategy keeps equal, are not."""


class RefusedError(DistributedError):
    """What was asked for does not work with this strategy or this Keras, and would not have worked silently."""
