"""Define the errors that both ``estimators`` and ``container`` raise. Other errors are in
:mod:`estimators.job.errors`.
"""

from __future__ import annotations

from collections.abc import Callable


class FleetfitError(Exception):
    """Base class of the errors that fleetfit raises intentionally.

    Attributes:
        on_creation: A function without arguments that is called whenever such an error is created. By default, the
            function does nothing.
    """

    on_creation: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.on_creation()


class ConfigurationError(FleetfitError, ValueError):
    """Raised if an argument, a file or a request is invalid. The error is raised before any process is started."""


class ArgumentNameError(ConfigurationError, TypeError):
    """Raised if an argument or an option does not exist, or must be passed by its name. The message suggests a name."""


class AgentError(Exception):
    """Raised if the host agent cannot do something that the job needs. The message is one line, and names the
    remedy.
    """


class DistributedError(RuntimeError):
    """Raised if the processes cannot train together. The message names the reason and the remedy."""


class WeightsDifferError(DistributedError):
    """Raised if the ranks' weights differ although a synchronous strategy should keep them equal."""


class RefusedError(DistributedError):
    """Raised if the script calls or configures something that the job's strategy or the version of Keras does not
    support.

    Without this error, the script would train wrongly without any message, or would fail with an unclear message.
    """
