"""Load and apply the user's rule for how long a failed host is excluded. A strategy's option such as
``exclusion="policies.py:Patient"`` names the rule.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from estimators.job.errors import ConfigurationError
from estimators.supervisor.elastic.policy import ExclusionPolicy

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


def load_policy(text: str) -> ExclusionPolicy:
    """Load the exclusion policy that the user has named.

    Args:
        text: The name of a callable that returns the policy, as ``path/of/file.py:Name`` or ``package.module:Name``.

    Raises:
        ConfigurationError: the policy cannot be loaded, or has no method ``failed``.
    """
    said = f"exclusion={text!r}"
    place, _, name = text.rpartition(":")
    try:
        policy = getattr(_module(place), name)()
    except Exception as error:  # the user's code may raise anything
        raise ConfigurationError(f"{said} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "failed", None)):
        raise ConfigurationError(f"{said} returns {policy!r}, which has no method failed(host, now).")
    found: ExclusionPolicy = policy
    return found


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Exclusion:
    """The exclusion rule of a job: the user's rule, or the default rule if the user's rule raises an error.

    Args:
        usual: The default rule.
        own: The user's rule. None to use the default rule.
        job: The supervisor, which logs the errors of the user's rule.
    """

    def __init__(self, usual: ExclusionPolicy, own: ExclusionPolicy | None, job: Supervisor) -> None:
        self._usual = usual
        self._own = own
        self._job = job

    def failed(self, host: str, now: float) -> float:
        """Return the time until which a host is excluded after a failure, on the clock of ``now``.

        Return ``math.inf`` if the host is excluded for ever.
        """
        usual = self._usual.failed(host, now)
        if self._own is None:
            return usual
        try:
            until = float(self._own.failed(host, now))
            if math.isnan(until):
                raise ValueError("failed() returned NaN")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._job.say(f"exclusion=… failed, so the usual cooldown is used: {type(error).__name__}: {error}.")
            return usual
        return max(until, now)
