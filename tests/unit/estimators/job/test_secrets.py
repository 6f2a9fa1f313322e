"""Values whose names look secret are hidden wherever a job is shown."""

from __future__ import annotations

import json
import time

import pytest

from estimators.job.log_redaction import text_mask
from estimators.job.secrets import MASK, looks_secret, mask_argv, mask_mapping, mask_request, mask_text, mask_value


def test_empty_secrets_are_shown_empty() -> None:
    assert mask_value("API_TOKEN", "") == ""


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "tokenizer", "monkey", "keyboard", "pad_token", "eos_token_id", "decoder_start_token", "key"),
        *("PAD_TOKEN", "padToken", "mask-token", "sort_key", "image_key", "primary_key", "num_special_tokens_to_add"),
        *("placeholder_token", "oov_token", "sos_token", "word_delimiter_token", "token_embedding_dim", "token_ids"),
        *("token_type_ids", "per_token_loss", "secretary", "authors", "passes", "tokens_per_second", "KeyError"),
        *("num-tokens", "epochs", "author", "keys", "lr", "compass"),
    ],
)
def test_everyday_hyperparameters_are_not_secrets(name: str) -> None:
    assert mask_mapping({name: "<value>"}) == {name: "<value>"}


@pytest.mark.parametrize(
    "name",
    [
        *("wandb_key", "WANDB_API_KEY", "COMET_KEY", "comet-key", "openaiKey", "AccountKey", "AZURE_STORAGE_KEY"),
        *("HF_TOKEN", "hub_token", "token", "use_auth_token", "sessionToken", "refresh_token", "API_TOKEN"),
        *("db-password", "SMTP_PASS", "INIT_TOKEN", "INSTANCE_TOKEN", "NEXT_TOKEN", "password", "DB_PASSWORD"),
        *("api-key", "apiKey", "API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "client.secret", "credentials"),
        *("private_key", "GITHUB_TOKEN", "accessKeyId", "auth", "passphrase", "wandb_api_key"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert mask_mapping({name: "<value>"}) == {name: MASK}


#: One of each form, in pieces: what looks for secrets in sources is not to find them here.
KNOWN = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + "0123456789abcdefABCDEF0123456789abcd",
    "github_pat_" + "11ABCDEFG0123456789abc_defghijklmnopqrstuvwxyz",
    "glpat-" + "abcdefghij0123456789",
    "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "sk-" + "proj-abcdefghijklmnop0123456789",
    "sk-" + "ant-api03-abcdefghijklmnop",
    "sk_" + "live_abcdefghijklmnop0123",
    "xoxb-" + "123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "AIza" + "SyA0123456789abcdefghijklmnopqrstuv",
    "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "dapi" + "0123456789abcdef0123456789abcdef",
]


@pytest.mark.parametrize("secret", KNOWN)
@pytest.mark.parametrize("text", ["{}", "key is {}.", "login({!r})", '{{"a": "{}"}}', "x={},y=1", "--note={}"])
def test_keys_of_known_forms_are_hidden_in_any_text(secret: str, text: str) -> None:
    given = text.format(secret)
    shown = [
        mask_text(given),
        str(mask_value("note", given)),
        mask_argv([given])[0],
        text_mask({})(given),
        text_mask({}).of_tail(given),
        json.dumps(mask_request({"HyperParameters": {"note": given}})),
    ]
    assert not [one for one in shown if secret in one]
    assert all(MASK in one for one in shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "GET https://b/k?X-Amz-Date=1&X-Amz-Signature=abc123&x=1",
            "GET https://b/k?X-Amz-Date=1&X-Amz-Signature=***&x=1",
        ),
        ("https://a/b?sv=1&sig=a%2Bb", "https://a/b?sv=1&sig=***"),
        ("https://a/b?access_token=abc#part", "https://a/b?access_token=***#part"),
        ("https://a/b?page=2&sort_key=x", "https://a/b?page=2&sort_key=x"),
        ("postgres://me:word@host/db", "postgres://***@host/db"),
        ("Authorization: Bearer abcdef.123", "Authorization: Bearer ***"),
        ("a bearer 0123456789abcdef.x", "a bearer ***"),
        ("the standard bearer remained calm", "the standard bearer remained calm"),
        ("Authorization: failed because", "Authorization: failed because"),
        ("hf_T5ForConditionalGeneration = 3", "hf_T5ForConditionalGeneration = 3"),
        ("sk-learn-pipeline-v2-final-run", "sk-learn-pipeline-v2-final-run"),
        ("Protocol=https;AccountName=x;AccountKey=abc==;End=y", "Protocol=https;AccountName=x;AccountKey=***;End=y"),
        ("https://hooks.slack.com/services/" + "T00000000/B00000000/XXXXXXXX", "https://hooks.slack.com/services/***"),
        ("{'Authorization': 'Basic YWJjZGVm'}", "{'Authorization': 'Basic ***'}"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
        ("risk-adjusted-returns-of-2024-and-more-words", "risk-adjusted-returns-of-2024-and-more-words"),
        ("commit 3f786850e387550fdab836ed7e6dc881de23001b", "commit 3f786850e387550fdab836ed7e6dc881de23001b"),
    ],
)
def test_addresses_and_headers(text: str, expected: str) -> None:
    assert mask_text(text) == text_mask({})(text) == expected


UNITS = (
    *("c", "c.", "token", "token=", 'token="', "token='\\", "a://b", "://", "_-", "aA", "= ", "\\"),
    *("sk-", "hf_ ", "-eyJ"),
)


@pytest.mark.parametrize(("start", "unit"), [*(("", unit) for unit in UNITS), ("eyJ", "aaa"), ("https://a?", "a=")])
def test_masking_takes_a_time_that_grows_with_the_length_only(start: str, unit: str) -> None:
    text = start + unit * (300_000 // len(unit))
    begin = time.perf_counter()
    mask_text(text)
    mask_argv([text, "--token", text])
    looks_secret(text)
    assert time.perf_counter() - begin < 2
    assert text_mask({})(text)


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
        ("max_tokens = '3'", "max_tokens = '3'"),
        ("token = read()", "token = read()"),
        ("a = 'token'", "a = 'token'"),
    ],
)
def test_assignments(text: str, masked: str) -> None:
    assert mask_text(text) == masked


def test_json_is_looked_into() -> None:
    shown = mask_value("SM_HPS", json.dumps({"api-key": "abc", "epochs": 3}))
    assert "abc" not in shown
    assert json.loads(shown)["epochs"] == 3
    nested = mask_value("SM_TRAINING_ENV", json.dumps({"hyperparameters": {"password": "abc"}, "user_args": []}))
    assert "abc" not in nested
    arguments = mask_value("SM_USER_ARGS", json.dumps(["--password", "abc", "--epochs", "3"]))
    assert json.loads(arguments) == ["--password", MASK, "--epochs", "3"]


def test_options_in_a_text_are_looked_into() -> None:
    assert mask_value("custom_mpi_options", "-x API_KEY=abc  --verbose") == f"-x API_KEY={MASK}  --verbose"
    assert mask_value("options", "--password abc -v") == f"--password {MASK} -v"
    assert mask_value("note", "the epoch took 3 s, loss=0.5") == "the epoch took 3 s, loss=0.5"


def test_requests_keep_sagemakers_own_names() -> None:
    plain = {"TrainingJobName": "job", "RoleArn": "arn"}
    secret = {"HyperParameters": {"secret": '"x"', "epochs": "3"}, "Environment": {"AWS_SECRET_ACCESS_KEY": "x"}}
    request = {**plain, **secret}
    hidden = {"HyperParameters": {"secret": MASK, "epochs": "3"}, "Environment": {"AWS_SECRET_ACCESS_KEY": MASK}}
    assert mask_request(request) == {**plain, **hidden}
    assert request["HyperParameters"]["secret"] == '"x"'
