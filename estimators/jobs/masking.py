"""Hides the secrets of a job's request in what its processes print."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from container.contract import hyperparameters as codec
from estimators.secrets import MASK, looks_secret

#: The members of a request in which names and values are the user's.
_MEMBERS = ("Environment", "HyperParameters")

#: Credentials that travel by the caller's environment.
_INHERITED = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

#: Shorter values are words of every log; to replace them would tell the secret rather than hide it.
_SHORTEST = 6


def text_mask(request: Mapping[str, Any]) -> Callable[[str], str] | None:
    """A function that hides the request's secrets in a text; None when it has none.

    Values shorter than six characters are left alone.
    """
    values = {os.environ.get(name, "") for name in _INHERITED}
    for member in _MEMBERS:
        for name, value in (request.get(member) or {}).items():
            if looks_secret(str(name)):
                values |= {str(value), str(codec.decode_value(value))}
    secrets = sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)
    if not secrets:
        return None
    pattern = re.compile("|".join(re.escape(secret) for secret in secrets))
    return lambda text: pattern.sub(MASK, text)
