"""Only what is signed with our keys, whole and now, is answered."""

from __future__ import annotations

import datetime
import re

import pytest
import signing

from estimators.service.errors import ServiceError
from estimators.service.settings import Keys
from estimators.service.signing import CLOCK_SKEW, Claim, verify

Headers = list[tuple[str, str]]


def check(
    headers: Headers, body: bytes, method: str = "POST", target: str = "/", late: float = 0.0, region: str = "us-east-1"
) -> Claim:
    now = signing.NOW + datetime.timedelta(seconds=late)
    return verify(method, target, headers, body, signing.KEYS, now, region)


def code(*arguments: object, **more: object) -> str:
    with pytest.raises(ServiceError) as caught:
        check(*arguments, **more)  # type: ignore[arg-type]
    assert caught.value.status == 403
    return caught.value.code


def changed(headers: Headers, name: str, value: str | None) -> Headers:
    kept = [(key, text) for key, text in headers if key.lower() != name.lower()]
    return kept if value is None else [*kept, (name, value)]


def test_what_botocore_signs_is_taken() -> None:
    headers, body = signing.signed("DescribeTrainingJob", {"TrainingJobName": "a"}, headers={"X-Amz-Meta": "a   b"})
    found = check(headers, body)
    assert (found.service, found.region) == ("sagemaker", "us-east-1")
    assert check([(name.upper(), value) for name, value in headers], body).service == "sagemaker"


@pytest.mark.parametrize("late", [-CLOCK_SKEW, CLOCK_SKEW])
def test_clocks_may_differ_by_a_quarter_of_an_hour(late: float) -> None:
    headers, body = signing.signed("ListTrainingJobs")
    check(headers, body, late=late)
    assert code(headers, body, late=late + (1 if late > 0 else -1)) == "InvalidSignatureException"


def test_a_credential_is_for_the_region_that_is_served() -> None:
    elsewhere = signing.signed("ListTrainingJobs", region="eu-west-1")
    assert code(*elsewhere) == "InvalidSignatureException"
    with pytest.raises(ServiceError, match=r"valid region, not 'eu-west-1'.*--region eu-west-1"):
        check(*elsewhere)
    assert check(*elsewhere, region="eu-west-1").region == "eu-west-1"
    one_for_all = signing.signed("", service="iam", body=b"Action=GetRole&RoleName=me")
    found = check(*one_for_all, region="eu-west-1")
    assert (found.service, found.region) == ("iam", "us-east-1")


def test_every_part_is_covered() -> None:
    headers, body = signing.signed("StopTrainingJob", {"TrainingJobName": "a"})
    mismatch = "InvalidSignatureException"
    assert code(headers, body.replace(b'"a"', b'"b"')) == mismatch
    assert code(headers, body, target="/?x=1") == mismatch
    assert code(headers, body, target="/other") == mismatch
    assert code(headers, body, method="GET") == mismatch
    assert code(changed(headers, "X-Amz-Target", "SageMaker.DeleteTrainingJob"), body) == mismatch
    assert code(changed(headers, "Host", "evil.example"), body) == mismatch
    authorization = dict(headers)["Authorization"]
    last = authorization[-1]
    other = authorization[:-1] + ("0" if last != "0" else "1")
    assert code(changed(headers, "Authorization", other), body) == mismatch


def test_a_digest_in_a_header_does_not_stand_for_the_body() -> None:
    headers, body = signing.signed("StopTrainingJob", headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert code(headers, body) == "InvalidSignatureException"


def test_what_is_not_signed_is_refused() -> None:
    headers, body = signing.signed("ListTrainingJobs")
    assert code(changed(headers, "Authorization", None), body) == "MissingAuthenticationTokenException"
    for bad in ("", "Basic abc", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=/, SignedHeaders=, Signature="):
        assert code(changed(headers, "Authorization", bad), body) == "IncompleteSignatureException"
    assert code([*headers, ("x-amz-extra", "1")], body) == "IncompleteSignatureException"
    assert code([*headers, ("HOST", "second")], body) == "IncompleteSignatureException"
    assert code(changed(headers, "X-Amz-Date", "yesterday"), body) == "IncompleteSignatureException"
    for name in ("host", "x-amz-date", "x-amz-target"):
        authorization = re.sub(f"{name};?", "", dict(headers)["Authorization"])
        assert code(changed(headers, "Authorization", authorization), body) == "IncompleteSignatureException"


@pytest.mark.parametrize(
    ("host", "target"), [("[", "/"), ("a b\u00e9", "/"), ("h", "/[x]?%zz=\u00e9"), ("h", "*"), ("", "")]
)
def test_addresses_that_cannot_be_read_are_refused(host: str, target: str) -> None:
    headers, body = signing.signed("ListTrainingJobs")
    assert code(changed(headers, "Host", host), body, target=target).startswith(("Incomplete", "InvalidSignature"))


def test_other_keys_and_session_tokens_are_refused() -> None:
    other = signing.signed("ListTrainingJobs", keys=Keys("AKIAIOSFODNN7EXAMPLE", "x" * 40))
    assert code(*other) == "UnrecognizedClientException"
    wrong = signing.signed("ListTrainingJobs", keys=Keys(signing.KEYS.access_key, "x" * 40))
    assert code(*wrong) == "InvalidSignatureException"
    headers, body = signing.signed("ListTrainingJobs")
    foreign = dict(headers)["Authorization"].replace("Credential=FL", "Credential=\xe9L")
    assert code(changed(headers, "Authorization", foreign), body) == "UnrecognizedClientException"
    token = signing.signed("ListTrainingJobs", headers={"X-Amz-Security-Token": "t"})
    assert code(*token) == "UnrecognizedClientException"
