"""Hides the secrets of a job in what its processes print, and in what is told of how it ended.

They are the values that the job has been given by names of secrets, and whatever has the form of a known one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.failures import Failure
from container.contract.names import CUT
from estimators.job.redaction import mask_known, secret_words
from estimators.job.secrets import MASK, looks_secret

#: The members of a request in which names and values are the user's.
_MEMBERS = ("Environment", "HyperParameters")

#: Shorter values are words of every log; to replace them would tell the secret rather than hide it.
_SHORTEST = 6
#: What is left of a secret beside a cut is hidden from this many characters on.
_SHORTEST_REST = 4
#: Shorter texts of a failure are whole, so that what looks like a rest of a secret at their ends is none.
_SHORTEST_CUT = 100


class Mask:
    """Hides secrets in texts: as they are, and what is left of one beside the mark of a cut (``…``).

    Args:
        forms: The secrets, in each form in which they are printed.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if self._forms else None

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        return self._without(text, cut=False)

    def of_tail(self, text: str) -> str:
        """Return the text without secrets, which may have been cut at both of its ends without a mark."""
        return self._without(text, cut=len(text) >= _SHORTEST_CUT)

    def _without(self, text: str, *, cut: bool) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        text = mask_known(text)
        if not self._forms or (not cut and CUT not in text):
            return text
        parts = text.split(CUT)
        last = len(parts) - 1
        return CUT.join(
            self._without_rests(part, begun=cut or number > 0, goes_on=cut or number < last)
            for number, part in enumerate(parts)
        )

    def _without_rests(self, part: str, *, begun: bool, goes_on: bool) -> str:
        """What is between two cuts, or between one and an end of the text, without the rests of secrets there."""
        body = part.strip()
        head, tail = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
        if len(body) < _SHORTEST_REST:
            return part
        if begun and goes_on and any(body in form for form in self._forms):
            return f"{head}{MASK}{tail}"
        if begun and (size := max(_size_of_end(form, body) for form in self._forms)):
            body = MASK + body[size:]
        if goes_on and (size := max(_size_of_start(form, body) for form in self._forms)):
            body = body[:-size] + MASK
        return f"{head}{body}{tail}"


def text_mask(request: Mapping[str, Any]) -> Mask:
    """Return what hides the job's secrets in a text.

    They are those of the request, and those of this process's environment, which jobs of this machine inherit. Values
    shorter than six characters are left alone.
    """
    values = {value for name, value in os.environ.items() if looks_secret(name) and not _is_harmless(value)}
    for member in _MEMBERS:
        for name, value in (request.get(member) or {}).items():
            decoded = codec.decode_value(value)
            if looks_secret(str(name)):
                values |= {str(value), str(decoded)}
            elif isinstance(decoded, list):
                values |= secret_words([word for word in decoded if isinstance(word, str)])
    return Mask(form for value in values for form in _forms(value) if len(form) >= _SHORTEST)


def mask_texts(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a copy of JSON-like data with secrets hidden in each of its texts."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {name: mask_texts(item, mask) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_texts(item, mask) for item in value]
    return value


def mask_failure(failure: Failure, mask: Mask) -> Failure:
    """Return a failure without secrets, and without the rests of them where a host has cut its texts."""
    return Failure.from_dict(mask_texts(failure.to_dict(), mask.of_tail))


def _is_harmless(value: str) -> bool:
    """Whether a variable that nobody chose for the job holds a word or a path: ``AUTH=disabled``, ``SSH_AUTH_SOCK``."""
    return value.isalpha() or (value.startswith("/") and os.path.exists(value))


def _forms(value: str) -> set[str]:
    """Return how a value looks in an exception's text: as it is, as a literal, and line by line."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], *(line.strip() for line in value.splitlines())}


def _size_of_end(form: str, text: str) -> int:
    """With how many characters from the end of a secret a text begins; 0 for none or few."""
    first = text[:_SHORTEST_REST]
    start = form.find(first, max(0, len(form) - len(text)))
    while start >= 0:
        if text.startswith(form[start:]):
            return len(form) - start
        start = form.find(first, start + 1)
    return 0


def _size_of_start(form: str, text: str) -> int:
    """With how many characters from the beginning of a secret a text ends; 0 for none or few."""
    last = text[-_SHORTEST_REST:]
    start = form.rfind(last, 0, len(text))
    while start >= 0:
        size = start + _SHORTEST_REST
        if text.endswith(form[:size]):
            return size
        start = form.rfind(last, 0, size - 1)
    return 0
