"""Define the backend options of jobs on SageMaker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.rules import above_0, one_of, option, read, text

#: Which program starts the training: see :attr:`SageMakerOptions.toolkit`.
TOOLKITS = ("auto", "image", "shipped")


@dataclass(frozen=True, kw_only=True)
class SageMakerOptions:
    """``RunOptions(backend_options={…})`` of jobs on SageMaker.

    Attributes:
        region: The AWS region. The default is the region of the session, the environment or the profile.
        profile: The name of a profile in AWS's configuration files. The default is the session's profile or
            ``AWS_PROFILE``.
        toolkit: The program that starts the training: "image", "shipped" or "auto". ``image`` means the image's own
            program. ``shipped`` means fleetfit's toolkit, which is uploaded. ``auto`` means ``image`` for fleetfit's
            own image and for images that start a program of their own, and ``shipped`` for all other images.
        poll_seconds: The shortest time between two polls of SageMaker, in seconds. The time grows while the job's
            status and logs do not change.
    """

    region: str | None = option(text())
    profile: str | None = option(text())
    toolkit: str = option(one_of(*TOOLKITS), "auto")
    poll_seconds: float = option(above_0("a number above 0"), 2.0)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SageMakerOptions:
        """Read ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown, or its value is invalid.
        """
        made: SageMakerOptions = read(cls, values, what="option of the backend 'ml'")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the options that differ from their defaults. :meth:`of` restores equal options from the result."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
