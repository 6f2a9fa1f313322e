"""What only this backend understands of a job's options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from container.contract.rules import one_of, option, read, refuse, text

#: Who starts the processes: the image itself, or our toolkit, which is sent along. ``auto`` decides by the image.
TOOLKITS = ("auto", "image", "shipped")


def _above_0(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise refuse(where, "a number above 0", value)
    return float(value)


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

    region: str | None = option(text())
    profile: str | None = option(text())
    toolkit: str = option(one_of(*TOOLKITS), "auto")
    poll_seconds: float = option(_above_0, 2.0)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SageMakerOptions:
        """Read ``backend_options``.

        Raises:
            ConfigurationError: there is no such option, or its value is wrong.
        """
        made: SageMakerOptions = read(cls, values, what="option of the backend 'ml'")
        return made

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`of` reads back equal; what is at its default is left out."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
