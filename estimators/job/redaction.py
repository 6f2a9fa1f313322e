"""Hides secrets in command lines, in source text and in addresses before they are kept or shown.

Every pattern is bounded: the text may be a notebook cell or a hyperparameter of hundreds of kilobytes, and masking it
must take a time that grows with its length only.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

MASK = "***"

_NAME_LIMIT = 200
#: A word of a name that ends like this is a secret's: ``dbpassword``, ``accesstoken``.
_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials", "secrets")
_WORDS = frozenset({"auth", "pass", "pwd", "passwords"})
#: Two words in a row: ``api_key``, ``accessKeyId``.
_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("encryption", "key"), ("signing", "key")})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+")
#: ``name = "value"``, ``name="value"``, ``"name": 'value'``, in Python, JSON and shell text.
_ASSIGNMENT = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]{1,100})(?P<between>["']?\]?[ \t]{0,8}[=:][ \t]{0,8}[rbufRBUF]{0,2})"""
    r"""(?P<quote>["'])(?P<value>(?:\\.|(?!(?P=quote))[^\\\n]){1,4096})(?P=quote)"""
)
_URL_USER = re.compile(r"://[^/\s@'\"]{1,512}@")
#: AWS access key ids and GitHub tokens are recognised by their form.
_KNOWN_FORMS = re.compile(r"\b(?:A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,255})\b")


@functools.lru_cache(maxsize=1024)
def looks_secret(name: str) -> bool:
    """Return whether a variable, option or hyperparameter of this name is likely to hold a secret.

    ``max_tokens`` and ``tokenizer``, everyday hyperparameters of text models, do not look like one.
    """
    if len(name) > _NAME_LIMIT:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word in _WORDS or word.endswith(_ENDINGS) for word in words):
        return True
    return any(pair in _PAIRS for pair in itertools.pairwise(words))


def mask_text(text: str) -> str:
    """Mask string literals that are given to secret names, users in URLs, and keys known by their form."""
    masked = _ASSIGNMENT.sub(_mask_assignment, text)
    masked = _URL_USER.sub(f"://{MASK}@", masked)
    return _KNOWN_FORMS.sub(MASK, masked)


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Mask the values of secret options in a command line: ``--api-key X``, ``--api-key=X``, ``API_KEY=X``.

    The number of arguments stays the same.
    """
    masked: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, value = argument[: _NAME_LIMIT + 1].partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            masked.append(MASK)
            hide_next = False
            continue
        is_name = not re.search(r"\s", name)
        hide_next = is_option and not equals and is_name and looks_secret(name)
        if equals and value and is_name and looks_secret(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(argument))
    return masked


def _mask_assignment(match: re.Match[str]) -> str:
    # ``os.environ["HF_TOKEN"] = …`` and ``client.secret = …``: the last part says what it is.
    if not looks_secret(match["name"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{MASK}{match['quote']}"
