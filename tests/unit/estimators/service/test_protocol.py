"""JSON and query, from the server's side."""

from __future__ import annotations

import json
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from estimators.service import identity, protocol
from estimators.service.errors import ServiceError, invalid
from estimators.service.models import Model

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


def test_a_target_names_service_and_operation() -> None:
    headers = {"x-amz-target": "SageMaker.ListTrainingJobs", "content-type": "application/x-amz-json-1.1"}
    call = protocol.read_call(headers, b"{}", "sagemaker")
    assert (call.service, call.operation, call.json_version) == ("sagemaker", "ListTrainingJobs", "1.1")
    with pytest.raises(ServiceError) as caught:  # signed for another service
        protocol.read_call(headers, b"{}", "logs")
    assert caught.value.code == "InvalidSignatureException"
    assert protocol.read_call({"x-amz-target": "ECR.DoIt"}, b"{}", "ecr").service is None


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a": 1' + b"0" * 5000 + b"}"])
def test_bodies_that_are_not_json_objects_are_refused(body: bytes) -> None:
    model = Model("sagemaker", ["ListTrainingJobs"])
    call = protocol.Call("sagemaker", "ListTrainingJobs", "1.1", body)
    with pytest.raises(ServiceError) as caught:
        protocol.parameters(call, model)
    assert caught.value.code == "SerializationException"


def test_what_a_query_client_sends_is_read_back() -> None:
    """CloudWatch's clients spoke the query protocol until lately."""
    description = Loader().load_service_model("cloudwatch", "service-2")
    operation = ServiceModel(description).operation_model("GetMetricStatistics")
    sent = {
        "Namespace": "n", "MetricName": "loss", "Period": 60, "Statistics": ["Average", "Sum"],
        "Dimensions": [{"Name": "a", "Value": "b & c"}, {"Name": "d", "Value": "=&"}],
        "StartTime": 1000.0, "EndTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    body = create_serializer("query").serialize_to_request(sent, operation)["body"]
    form = "&".join(f"{name}={urllib.parse.quote(str(value))}" for name, value in body.items())
    call = protocol.read_call(FORM, form.encode(), "monitoring")
    assert (call.service, call.operation, call.json_version) == ("cloudwatch", "GetMetricStatistics", None)
    read = protocol.parameters(call, Model("cloudwatch", ["GetMetricStatistics"]))
    assert read == {**sent, "EndTime": 1767225600.0}


def test_a_form_may_have_a_long_list() -> None:
    body = "&".join(f"Dimensions.member.{n}.{part}=v{n}" for n in range(4_900, 0, -1) for part in ("Name", "Value"))
    call = protocol.Call("cloudwatch", "GetMetricStatistics", None, f"{body}&Dimensions.x=1&a.{'.' * 99}=2".encode())
    read = protocol.parameters(call, Model("cloudwatch", ["GetMetricStatistics"]))
    assert read == {"Dimensions": [{"Name": f"v{n}", "Value": f"v{n}"} for n in range(1, 4_901)]}


@pytest.mark.parametrize("time", ["1e18", "-1e30", "inf", "nan", "99999-01-01", "soon", ""])
def test_times_that_are_none_are_refused(time: str) -> None:
    call = protocol.Call("cloudwatch", "GetMetricStatistics", None, f"StartTime={time}".encode())
    with pytest.raises(ServiceError) as caught:
        protocol.parameters(call, Model("cloudwatch", ["GetMetricStatistics"]))
    assert caught.value.code == "SerializationException"


def test_query_answers_and_errors_are_read_by_botocore() -> None:
    model = Model("iam", ["GetRole"])
    call = protocol.Call("iam", "GetRole", None, b"")
    answer = protocol.render(call, model, identity.get_role({"RoleName": "a<b"}))
    operation = ServiceModel(Loader().load_service_model("iam", "service-2")).operation_model("GetRole")
    response = {"headers": {}, "status_code": answer.status, "body": answer.body}
    parsed = create_parser("query").parse(response, operation.output_shape)
    assert parsed["Role"]["RoleName"] == "a<b"
    assert parsed["Role"]["CreateDate"].year == 2020
    failed = protocol.render_error(invalid("a < b"), json_version=None)
    assert ElementTree.fromstring(failed.body).findtext("Error/Message") == "a < b"
    odd = protocol.render_error(invalid("a\0b\x1b\ud800"), json_version=None)
    assert ElementTree.fromstring(odd.body).findtext("Error/Message") == "a\ufffdb\ufffd\ufffd"
    response = {"headers": {}, "status_code": failed.status, "body": failed.body}
    parsed = create_parser("query").parse(response, operation.output_shape)
    assert parsed["Error"]["Code"] == "ValidationException"


def test_json_errors_name_their_type() -> None:
    answer = protocol.render_error(invalid("no"), json_version="1.1")
    assert (answer.status, json.loads(answer.body)) == (400, {"__type": "ValidationException", "message": "no"})
    answer = protocol.render_error(invalid("no"), json_version="1.0", query_service=True)
    assert answer.headers["x-amzn-query-error"] == "ValidationException;Sender"
