"""Hide the secrets of a job in the output of its processes, and in the description of its failure.

Secrets are values with names that look secret, such as ``API_KEY``, and texts that look like the keys of known
services.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.failures import Failure
from container.contract.names import CUT
from container.contract.texts import map_texts
from estimators.job.redaction import mask_known, secret_words
from estimators.job.secrets import MASK, looks_secret

#: The members of a request whose names and values come from the user.
_MEMBERS = ("Environment", "HyperParameters")

#: The length of the shortest hidden value, in characters. A shorter value may also be an ordinary word of the output. A
#: mask in place of this word would reveal the value.
_SHORTEST = 6
#: If a text was cut inside a secret, the remaining part of the secret is hidden if it has at least this many
#: characters.
_SHORTEST_REST = 4
#: Texts of a failure that have at least this many characters may have been cut. Shorter texts are complete, so that
#: they cannot begin or end with a part of a secret.
_SHORTEST_CUT = 100


class Mask:
    """Hide secrets in texts. If a text was cut inside a secret, a part of the secret remains beside the mark of the cut
    (``…``). Such parts are hidden too.

    Args:
        forms: The secrets, in each form in which they may be printed.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if self._forms else None

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        return self._without(text, cut=False)

    def of_tail(self, text: str) -> str:
        """Return the text without secrets, and without parts of secrets at the beginning and at the end.

        Such parts remain if the text was cut at its beginning or its end without a mark.
        """
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
        """Hide the parts of secrets at the beginning and at the end of a piece of a text that was cut.

        Args:
            part: The piece of the text.
            begun: Whether text was removed before the piece, so that the piece may begin with the end of a secret.
            goes_on: Whether text was removed after the piece, so that the piece may end with the beginning of a secret.
        """
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
    """Return the mask that hides the job's secrets in texts.

    The secrets are taken from the request and from this process's environment, because local jobs inherit the
    environment. Values of fewer than six characters are not hidden.
    """
    values = {value for name, value in os.environ.items() if looks_secret(name) and not _is_harmless(value)}
    for member in _MEMBERS:
        for name, value in (request.get(member) or {}).items():
            values.update(_secrets(value, hidden=looks_secret(str(name))))
    return Mask(form for value in values for form in _forms(value) if len(form) >= _SHORTEST)


def _secrets(value: Any, *, hidden: bool) -> Iterator[str]:
    """Yield the secrets in a value, which may contain dicts and command lines.

    With ``hidden``, the whole value is a secret. Its parts are also secrets, except for numbers and plain words.
    """
    if hidden:
        yield from (str(value), str(codec.decode_value(value)))
    waiting = [(value, False, hidden)]
    while waiting:
        item, named, within = waiting.pop()
        decoded = codec.decode_value(item)
        if named or (within and isinstance(decoded, str) and not _is_harmless(decoded)):
            yield from (str(item), str(decoded))
        if isinstance(decoded, list):
            yield from secret_words([word for word in decoded if isinstance(word, str)])
            waiting += [(inner, named, within) for inner in decoded]
        elif isinstance(decoded, Mapping):
            waiting += [(inner, looks_secret(name), within or named) for name, inner in decoded.items()]


def mask_failure(failure: Failure, mask: Mask) -> Failure:
    """Return the failure without secrets.

    Hosts cut long texts. Therefore a text may begin or end with a part of a secret. Such parts are hidden too.
    """
    return Failure.from_dict(map_texts(failure.to_dict(), mask.of_tail))


def _is_harmless(value: str) -> bool:
    """Return whether the value of an environment variable is only a word or an existing path, and therefore not a
    secret.

    Examples are the values of ``AUTH=disabled`` and ``SSH_AUTH_SOCK``.
    """
    return value.isalpha() or (value.startswith("/") and os.path.exists(value))


def _forms(value: str) -> set[str]:
    """Return the forms in which a value may be printed: unchanged, as a Python or JSON literal, and each line alone."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], *(line.strip() for line in value.splitlines())}


def _size_of_end(form: str, text: str) -> int:
    """Return how many characters at the beginning of the text are the end of a secret. Return 0 if they are fewer than
    four.

    For the secret ``password1`` and the text ``word1 is``, the result is 5.

    Args:
        form: The secret.
        text: The text.
    """
    first = text[:_SHORTEST_REST]
    start = form.find(first, max(0, len(form) - len(text)))
    while start >= 0:
        if text.startswith(form[start:]):
            return len(form) - start
        start = form.find(first, start + 1)
    return 0


def _size_of_start(form: str, text: str) -> int:
    """Return how many characters at the end of the text are the beginning of a secret. Return 0 if they are fewer than
    four.

    For the secret ``password1`` and the text ``it is pass``, the result is 4.

    Args:
        form: The secret.
        text: The text.
    """
    last = text[-_SHORTEST_REST:]
    start = form.rfind(last, 0, len(text))
    while start >= 0:
        size = start + _SHORTEST_REST
        if text.endswith(form[:size]):
            return size
        start = form.rfind(last, 0, size - 1)
    return 0
