"""Secrets are hidden, and what only looks a little like one is not."""

import time

import pytest

from estimators.job.redaction import looks_secret, mask_argv, mask_text


@pytest.mark.parametrize(
    "name",
    [
        "password", "DB_PASSWORD", "api-key", "apiKey", "API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
        "token", "HF_TOKEN", "wandb_api_key", "client.secret", "credentials", "private_key", "GITHUB_TOKEN",
        "accessKeyId", "auth", "passphrase",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "tokenizer", "num-tokens", "epochs", "author", "keys", "lr", "passes", "compass", "monkey", "key"],
)
def test_names_of_everyday_values(name: str) -> None:
    assert not looks_secret(name)


def test_command_lines() -> None:
    given = ["t.py", "--token", "abc", "--token=abc", "TOKEN=abc", "--epochs", "3", "--password", "--lr=1"]
    shown = ["t.py", "--token", "***", "--token=***", "TOKEN=***", "--epochs", "3", "--password", "--lr=1"]
    assert mask_argv(given) == shown


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('api_key = "abc"', 'api_key = "***"'),
        ("fit(password='a\\'b', lr=1)", "fit(password='***', lr=1)"),
        ('{"token": "abc", "epochs": 3}', '{"token": "***", "epochs": 3}'),
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "***"'),
        ("https://user:pw@host/x", "https://***@host/x"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("max_tokens = '3'", "max_tokens = '3'"),
        ("token = read()", "token = read()"),
        ("a = 'token'", "a = 'token'"),
    ],
)
def test_text(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "unit", ["c", "c.", "token", "token=", 'token="', "token='\\", "a://b", "://", "_-", "aA", "= ", "\\"]
)
def test_masking_takes_a_time_that_grows_with_the_length_only(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    begin = time.perf_counter()
    mask_text(text)
    mask_argv([text, "--token", text])
    looks_secret(text)
    assert time.perf_counter() - begin < 2
