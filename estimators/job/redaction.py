"""Hide secrets in command lines, source code, logs and URLs before these texts are stored or shown.

A secret is recognised by its name or by its format. Known formats are the keys of well-known services, and signatures
in addresses. The formats are taken from the services' documentation and from Yelp's detect-secrets.

A text may be a notebook cell or a hyperparameter of hundreds of kilobytes. Therefore every pattern limits the length of
its matches, so that the time for masking is linear in the length of the text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

MASK = "***"

_NAME_LIMIT = 200
#: Endings of words that make a name secret: ``dbpassword``, ``accesstoken``.
_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials", "secrets")
_WORDS = frozenset({"auth", "pass", "pwd", "passwords"})
#: Pairs of words that make a name secret: ``api_key``, ``accessKeyId``.
_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("encryption", "key"), ("signing", "key")})
#: Words before ``key`` that make a name secret: ``WANDB_KEY``, ``comet_key``, ``AccountKey``. With other words, ``key``
#: usually means a column: ``sort_key``.
_KEYS_OF = frozenset({
    "account", "anthropic", "aws", "azure", "cohere", "comet", "datadog", "deepseek", "deploy", "fernet", "gcp",
    "gemini", "github", "gitlab", "google", "gpg", "groq", "hf", "hmac", "huggingface", "kaggle", "license",
    "master", "mistral", "neptune", "ngc", "nvidia", "openai", "pgp", "pinecone", "replicate", "rsa", "secret",
    "sendgrid", "sentry", "service", "slack", "ssh", "storage", "stripe", "subscription", "together", "twilio",
    "wandb", "webhook",
})  # fmt: skip
#: Words before ``token`` that mean a token of a text: ``pad_token``, ``decoder_start_token``.
_TOKENS_OF_TEXTS = frozenset({
    "audio", "begin", "blank", "boi", "bos", "cls", "delimiter", "end", "eoi", "eos", "eot", "fim", "image",
    "initializer", "lang", "language", "mask", "modifier", "oov", "pad", "padding", "per", "placeholder", "prefix",
    "sep", "separator", "sos", "special", "src", "start", "stop", "suffix", "tgt", "trigger", "unk", "unknown",
    "video", "word",
})  # fmt: skip
#: Words after ``token`` that mean a token of a text: ``token_embedding_dim``.
_OF_TOKENS = frozenset({
    "classification", "count", "dim", "dropout", "embedding", "ids", "length", "level", "limit", "size", "type",
    "types",
})  # fmt: skip

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+")
#: ``name = "value"``, ``name="value"``, ``"name": 'value'``, in Python, JSON and shell text.
_ASSIGNMENT = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]{1,100})(?P<between>["']?\]?[ \t]{0,8}[=:][ \t]{0,8}[rbufRBUF]{0,2})"""
    r"""(?P<quote>["'])(?P<value>(?:\\.|(?!(?P=quote))[^\\\n]){1,4096})(?P=quote)"""
)
_URL_USER = re.compile(r"://[^/\s@'\"]{1,512}@")
#: Substring of a key -> pattern of the key. The substrings are used for a fast first check.
_FORMS = {
    "AKIA": r"AKIA[0-9A-Z]{16}",
    "ASIA": r"ASIA[0-9A-Z]{16}",
    "AIza": r"AIza[\w-]{35}",
    "SG.": r"SG\.[\w-]{16,64}\.[\w-]{16,64}",
    "dapi": r"dapi[0-9a-f]{32}",
    "dckr_pat_": r"dckr_pat_[\w-]{20,99}",
    "eyJ": r"(?<![\w-])eyJ[\w-]{8,4096}\.eyJ[\w-]{8,4096}\.[\w-]{8,4096}",
    **{f"gh{kind}_": rf"gh{kind}_[A-Za-z0-9]{{36,255}}" for kind in "oprsu"},
    "github_pat_": r"github_pat_\w{22,255}",
    "glpat-": r"glpat-[\w-]{20,255}",
    "gsk_": r"gsk_[A-Za-z0-9]{30,99}",
    "hf_": r"hf_[A-Za-z0-9]{30,99}",
    "npm_": r"npm_[A-Za-z0-9]{36}",
    "nvapi-": r"nvapi-[\w-]{40,255}",
    "pypi-": r"pypi-[\w-]{50,255}",
    "r8_": r"r8_[A-Za-z0-9]{30,99}",
    "sk-": r"sk-(?:(?:admin|ant|or|proj|svcacct)-[\w-]{20,255}|[A-Za-z0-9]{20,255})",
    "_live_": r"[prs]k_live_[A-Za-z0-9]{16,255}",
    "_test_": r"[prs]k_test_[A-Za-z0-9]{16,255}",
    "xox": r"xox[abeoprs]-[A-Za-z0-9-]{10,255}",
    "ya29.": r"ya29\.[\w-]{20,2048}",
}
_KNOWN_FORMS = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_FORMS.values())})(?![A-Za-z0-9])")
#: Signatures and secrets in URLs: ``?X-Amz-Signature=…``, ``&sig=…``, ``?token=…``.
_QUERY = re.compile(r"(?P<name>[?&;](?P<word>[A-Za-z][\w.-]{0,60}))=(?P<value>[^&;\s\"'<>#]{1,4096})")
_SIGNATURES = frozenset(("sig", "signature", "key", "token", "x-amz-signature", "x-amz-credential", "x-goog-signature"))
_HEADER = re.compile(
    r"(?P<name>\b[Aa]uthorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:Basic|Bearer|Digest|Negotiate|Token) "
    r"|\b(?:[Bb]earer|BEARER) (?=[\w.~+/=-]{0,255}[0-9])(?=[\w.~+/=-]{16}))[\w.~+/=-]{6,4096}"
)
_HOOK = re.compile(r"(?<=hooks\.slack\.com/services/)[\w/]{8,255}")
_PRIVATE = re.compile(r"(?<=PRIVATE KEY-----)[\s\S]{1,16384}?(?=-----END)")


@functools.lru_cache(maxsize=1024)
def looks_secret(name: str) -> bool:
    """Return whether a variable, option or hyperparameter with this name is likely to contain a secret.

    Common hyperparameters of text models, such as ``max_tokens`` and ``tokenizer``, do not look secret.
    """
    if len(name) > _NAME_LIMIT:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if any(pair in _PAIRS or (pair[0] in _KEYS_OF and pair[1] == "key") for pair in itertools.pairwise(words)):
        return True
    for before, word, behind in zip(["", *words], words, [*words[1:], ""], strict=False):
        of_text = word == "token" and (before in _TOKENS_OF_TEXTS or behind in _OF_TOKENS)
        if word in _WORDS or (word.endswith(_ENDINGS) and not of_text):
            return True
    return False


def mask_text(text: str) -> str:
    """Mask string literals that are assigned to secret names, and everything that :func:`mask_known` masks."""
    return mask_known(_ASSIGNMENT.sub(_mask_assignment, text))


def mask_known(text: str) -> str:
    """Mask user names and signatures in URLs, values of Authorization headers, private keys, and keys of known formats.

    The function is applied to all output of jobs. To be fast, it searches for a pattern only if the text contains a
    typical substring, such as ``://``.
    """
    if "://" in text:
        text = _URL_USER.sub(f"://{MASK}@", text)
        text = _HOOK.sub(MASK, text)
    if "://" in text or "Key=" in text:
        text = _QUERY.sub(_mask_query, text)
    if "earer " in text or "uthorization" in text or "BEARER " in text:
        text = _HEADER.sub(rf"\g<name>{MASK}", text)
    if "PRIVATE KEY-----" in text:
        text = _PRIVATE.sub(MASK, text)
    return _KNOWN_FORMS.sub(MASK, text) if any(start in text for start in _FORMS) else text


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Mask the values of secret options in a command line, such as ``--api-key X``, ``--api-key=X`` and ``API_KEY=X``.

    The number of arguments does not change.
    """
    masked: list[str] = []
    hidden = 0  # how many of the next words are values of a secret option
    for argument in argv:
        name, equals, value = argument[: _NAME_LIMIT + 1].partition("=")
        is_option = argument.startswith("--") or (argument.startswith("-") and (not hidden or len(argument) < 3))
        if hidden and not is_option:
            masked.append(MASK)
            hidden -= 1
            continue
        inner, equals_too, _ = value.partition("=")
        hidden = 0
        if is_option and not equals and _is_secret(name):
            hidden = len(argv) if name.endswith("s") else 1  # --passwords one two
        if equals and value and _is_secret(name):
            masked.append(f"{name}={MASK}")
        elif equals_too and is_option and _is_secret(inner):
            masked.append(f"{name}={inner}={MASK}")
        else:
            masked.append(mask_text(argument))
    return masked


def _is_secret(name: str) -> bool:
    return not re.search(r"\s", name) and looks_secret(name)


def secret_words(argv: Sequence[str]) -> set[str]:
    """Return the values in a command line that :func:`mask_argv` hides, such as the values of secret options."""
    masked = zip(argv, mask_argv(argv), strict=True)
    return {word[len(shown) - len(MASK) :] for word, shown in masked if shown.endswith(MASK) and word != shown}


def _mask_query(match: re.Match[str]) -> str:
    word = match["word"]
    secret = word.lower() in _SIGNATURES or looks_secret(word)
    return f"{match['name']}={MASK}" if secret else match[0]


def _mask_assignment(match: re.Match[str]) -> str:
    # ``os.environ["HF_TOKEN"] = …`` and ``client.secret = …``: the last part of the name decides.
    if not looks_secret(match["name"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{MASK}{match['quote']}"
