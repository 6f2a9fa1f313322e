"""Hide secrets wherever a job is shown: in logs, plans, HTML and ``describe()``. A secret is a value whose name looks
secret.

Only the shown texts are masked. Scripts get the real values, and the record's files are private to the user.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from estimators.job.redaction import MASK, looks_secret, mask_argv, mask_text

__all__ = ["MASK", "looks_secret", "mask_argv", "mask_mapping", "mask_request", "mask_text", "mask_value"]

#: Members of a CreateTrainingJob request (and of its descriptions) that map the user's own names to values.
_USER_MAPS = ("HyperParameters", "Environment")


def mask_value(name: str, value: Any) -> Any:
    """Return ``***`` if the name looks secret. Otherwise mask the secrets inside the value, and return the value.

    JSON texts are parsed and masked too, because a hyperparameter may be a dict, and ``SM_HPS`` contains all
    hyperparameters.
    """
    if looks_secret(name) and value not in (None, "", "null", '""'):
        return MASK
    if isinstance(value, Mapping):
        return mask_mapping(value)
    if isinstance(value, str):
        return _mask_string(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _mask_sequence(value)
    return value


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the mapping with secret values masked."""
    return {name: mask_value(str(name), value) for name, value in values.items()}


def mask_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a CreateTrainingJob request, or of a job's description, in which the user's secrets are masked.

    Names that SageMaker defines (``RoleArn``, ``EnableSageMakerMetricsTimeSeries``) are not masked.
    """
    return {
        name: mask_mapping(value) if name in _USER_MAPS and isinstance(value, Mapping) else value
        for name, value in request.items()
    }


def _mask_sequence(values: Sequence[Any]) -> list[Any]:
    if set(map(type, values)) <= {str}:
        return list(_mask_texts(tuple(values)))
    return [mask_value("", value) for value in values]


@functools.lru_cache(maxsize=16)
def _mask_texts(values: tuple[str, ...]) -> tuple[str, ...]:
    # Cached, because the variables of each host contain the list of all hosts several times.
    return tuple(mask_argv(values))


def _mask_string(text: str) -> str:
    stripped = text.lstrip()
    if stripped[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError:
            return _mask_words(text)
        masked = mask_value("", value)
        return text if masked == value else json.dumps(masked, separators=(",", ":"))
    return _mask_words(text)


def _mask_words(text: str) -> str:
    """Mask secret values in assignments and in options. ``custom_mpi_options``, for example, may contain both."""
    return " ".join(mask_argv(mask_text(text).split(" ")))
