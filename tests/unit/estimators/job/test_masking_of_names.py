"""Secrets in texts: in what is printed, and in the reasons of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container.contract.failures import Cause, Failure
from container.contract.texts import map_texts
from estimators.job.log_redaction import text_mask


def masked(text: str, **request: Any) -> str:
    return text_mask(request)(text)


def test_a_secret_is_found_in_each_form_that_an_exception_gives_it() -> None:
    environment = {"API_KEY": "it's\tmine", "PRIVATE_KEY": "-----BEGIN\nMIIEvAIBADAN\n", "EPOCHS": "1234567"}
    texts = ["it's\tmine", repr({"key": "it's\tmine"}), json.dumps("it's\tmine"), "line: MIIEvAIBADAN", "1234567"]
    found = [masked(text, Environment=environment) for text in texts]
    assert found == ["***", "{'key': \"***\"}", '"***"', "line: ***", "1234567"]


def test_secrets_of_the_environment_that_jobs_inherit_count_and_words_and_paths_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("AUTH", "disabled")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path))
    assert masked(f"hf_0123456789 disabled {tmp_path}") == f"*** disabled {tmp_path}"


def test_secrets_inside_of_hyperparameters_are_found() -> None:
    database = {"user": "somebody", "password": "open-sesame", "replicas": [{"api_key": "sesame-open"}]}
    found = {"db": json.dumps(database), "credentials": json.dumps({"name": "secret-name"})}
    text = "password=open-sesame,user=somebody sesame-open secret-name"
    assert masked(text, HyperParameters=found) == "password=***,user=somebody *** ***"


def test_data_is_masked_at_any_depth() -> None:
    mask = text_mask({"Environment": {"API_KEY": "sesame-sesame"}})
    failure = Failure(cause=Cause.PROCESS, message="sesame-sesame", hints=("try sesame-sesame",), exit_code=1)
    assert map_texts(failure.to_dict(), mask) == {
        "cause": "process",
        "message": "***",
        "hints": ["try ***"],
        "exit_code": 1,
    }


def test_what_a_cut_leaves_of_a_secret_is_hidden_on_both_of_its_sides() -> None:
    environment = {"API_KEY": "open-sesame-now"}
    texts = ["the key is open-sesa… (exited with code 1)", "…\nsame-now is it", "…en-sesa…", "open the door…", "no…now"]
    found = [masked(text, Environment=environment) for text in texts]
    assert found == ["the key is ***… (exited with code 1)", "…\n*** is it", "…***…", "open the door…", "no…now"]


@pytest.mark.parametrize("size", range(4, 15))
def test_the_ends_of_a_failures_texts_may_be_cut_without_a_mark(size: int) -> None:
    mask = text_mask({"Environment": {"API_KEY": "open-sesame-now"}})
    said = " and so on" * 10
    text = "open-sesame-now"[-size:] + said + "open-sesame-now"[:size]
    assert mask.of_tail(text) == f"***{said}***"
    assert mask(text) == text
    assert mask.of_tail("the door is open") == "the door is open"


def test_the_rests_of_long_secrets_beside_many_cuts_are_found_without_delay() -> None:
    key = "ab" * 4000
    assert masked("x ababababab…" * 20_000, Environment={"API_KEY": key}) == "x ***…" * 20_000
