"""What only this backend understands of a job's options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from container.contract.names import unknown
from estimators.job.errors import ConfigurationError

#: Who starts the processes: the image itself, or our toolkit, which is sent along. ``auto`` decides by the image.
TOOLKITS = ("auto", "image", "shipped")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SageMakerOptions:
    """``RunOptions(backend_options={…})`` of jobs on SageMaker.

    Attributes:
        region: AWS's region; default: the session's, or what the environment or the profile says.
        profile: A profile of AWS's configuration files; default: the session's, or ``AWS_PROFILE``.
        toolkit: ``image``: the image starts the training by itself; ``shipped``: fleetfit's toolkit is sent along and
            starts it; ``auto``: the image where it is fleetfit's own or brings its own program, else shipped.
        poll_seconds: How often SageMaker is asked at the most, in seconds; where nothing happens it is less.
    """

    region: str | None = None
    profile: str | None = None
    toolkit: str = "auto"
    poll_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("region", "profile"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"backend_options: {name!r} must be a string, got {value!r}.")
        if self.toolkit not in TOOLKITS:
            raise ConfigurationError(unknown("backend_options: 'toolkit'", self.toolkit, TOOLKITS))
        seconds = self.poll_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigurationError(f"backend_options: 'poll_seconds' must be a number above 0, got {seconds!r}.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SageMakerOptions:
        """Read ``backend_options``.

        Raises:
            ConfigurationError: there is no such option, or its value is wrong.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigurationError(unknown("option of the backend 'ml'", name, known))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`of` reads back equal; what is at its default is left out."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
