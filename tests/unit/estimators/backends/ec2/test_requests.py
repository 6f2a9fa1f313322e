"""What EC2 is asked for, and how its answers are read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from estimators.backends.ec2 import requests
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import FleetAnswer, Refusal

TAGS = {"fleetfit:job": "job"}
SPOT = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}


def search(*, fallback: bool = False, **wanted: Any) -> list[dict[str, Any]]:
    """The requests of one pass."""
    options = Ec2Options(on_demand_fallback=fallback)
    given = {"types": ("g5.xlarge", "g4dn.2xlarge"), "subnets": ("subnet-a", "subnet-b"), **wanted}
    return requests.fleet_requests(options, template="lt-1", tags=TAGS, **given)


def template(**options: Any) -> dict[str, Any]:
    return requests.template_data(
        Ec2Options(**options),
        image="ami-1",
        root_device="/dev/sda1",
        name="k",
        group="sg-1",
        user_data="text",
        tags=TAGS,
    )


def test_elastic_hosts_on_spot_capacity_come_from_all_pools() -> None:
    assert search(hosts=3) == [
        {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": "lt-1", "Version": "1"},
                    "Overrides": [
                        {"InstanceType": kind, "SubnetId": subnet}
                        for kind in ("g5.xlarge", "g4dn.2xlarge")
                        for subnet in ("subnet-a", "subnet-b")
                    ],
                }
            ],
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": 3,
                "OnDemandTargetCapacity": 0,
                "SpotTargetCapacity": 3,
                "DefaultTargetCapacityType": "spot",
            },
            "SpotOptions": SPOT,
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": [{"Key": "fleetfit:job", "Value": "job"}]}
                for kind in ("fleet", "instance")
            ],
        }
    ]


def test_a_gang_is_all_or_none_in_one_zone() -> None:
    asked, *_ = search(hosts=4, together=True, max_total_price=3.5)
    assert asked["SpotOptions"] == {
        **SPOT,
        "SingleAvailabilityZone": True,
        "SingleInstanceType": True,
        "MinTargetCapacity": 4,
        "MaxTotalPrice": "3.5000",
    }


def test_a_base_of_hosts_is_on_demand() -> None:
    [asked] = search(hosts=4, on_demand=1)
    assert asked["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    assert "SpotOptions" not in search(hosts=2, on_demand=2)[0]


def test_every_request_is_one_that_botocore_takes() -> None:
    import boto3
    from botocore.validate import ParamValidator

    client = boto3.session.Session().client(
        "ec2", region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    model = client.meta.service_model
    data = template(volume_gb=50, instance_profile="arn:aws:iam::1:instance-profile/p")
    cases = [
        ("CreateFleet", search(hosts=4, on_demand=1, together=True, max_total_price=2.0)[0]),
        ("CreateLaunchTemplate", {"LaunchTemplateName": "name", "LaunchTemplateData": data}),
    ]
    for operation, arguments in cases:
        report = ParamValidator().validate(arguments, model.operation_model(operation).input_shape)
        assert not report.has_errors(), report.generate_report()


def test_a_success_may_hold_less_than_was_asked_for_with_the_reasons() -> None:
    place = {"Overrides": {"InstanceType": "g5.xlarge", "AvailabilityZone": "eu-west-1b"}}
    error = {
        "LaunchTemplateAndOverrides": place,
        "Lifecycle": "spot",
        "ErrorCode": "InsufficientInstanceCapacity",
        "ErrorMessage": "We currently do not have sufficient capacity.",
    }
    answer = FleetAnswer.of(
        {
            "FleetId": "fleet-1",
            "Instances": [
                {"Lifecycle": "spot", "InstanceIds": ["i-1", "i-2"], "InstanceType": "g5.xlarge"},
                {"Lifecycle": "on-demand", "InstanceIds": ["i-3"], "LaunchTemplateAndOverrides": place},
            ],
            "Errors": [error, error],
        }
    )
    assert answer.launched == ("i-1", "i-2", "i-3")
    assert [str(refusal) for refusal in answer.refusals] == ["g5.xlarge in eu-west-1b: InsufficientInstanceCapacity"]
    assert answer.hopeless is None


@pytest.mark.parametrize("response", [{}, {"Instances": None, "Errors": None}, {"Errors": [{}]}, {"Instances": [{}]}])
def test_an_empty_answer_is_read_too(response: dict[str, Any]) -> None:
    assert FleetAnswer.of(response).launched == ()


@pytest.mark.parametrize(
    ("codes", "hopeless"),
    [
        (["InsufficientInstanceCapacity"], None),
        (["InsufficientInstanceCapacity", "InvalidFleetConfiguration"], None),
        (["InvalidFleetConfiguration", "VcpuLimitExceeded"], "InvalidFleetConfiguration"),
        (["SomethingNew"], "SomethingNew"),
        ([], None),
    ],
)
def test_what_waiting_does_not_end_is_told_at_once(codes: list[str], hopeless: str | None) -> None:
    answer = FleetAnswer(refusals=tuple(Refusal(code=code, text="") for code in codes))
    assert (answer.hopeless.code if answer.hopeless else None) == hopeless


@pytest.mark.parametrize(
    "code",
    [
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity", "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet",
        "UnfulfillableCapacity", "SpotMaxPriceTooLow", "SpotMinPriceTooLow", "MaxSpotFleetRequestCountExceeded",
        "ResourceCountLimitExceeded", "RequestResourceCountExceeded",
    ],
)  # fmt: skip
def test_a_lack_of_capacity_is_waited_for(code: str) -> None:
    refusal = Refusal(code=code, text="")
    assert refusal.passes and refusal.lacks_capacity


@pytest.mark.parametrize(
    "code",
    [
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "EC2ThrottledException",
        "SlowDown", "ConcurrentRequestLimitExceeded", "InternalError", "InternalFailure", "ServiceUnavailable",
        "Unavailable", "Server.InternalError",
    ],
)  # fmt: skip
def test_a_failed_request_is_waited_for_and_is_no_lack_of_capacity(code: str) -> None:
    refusal = Refusal(code=code, text="")
    assert refusal.passes and not refusal.lacks_capacity


@pytest.mark.parametrize(
    "code",
    [
        "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded",
        "SpotInstanceCountLimitExceeded", "AddressLimitExceeded", "VolumeLimitExceeded",
    ],
)  # fmt: skip
def test_a_limit_of_the_account_does_not_end_by_itself(code: str) -> None:
    refusal = Refusal(code=code, text="No.")
    assert not refusal.passes and not refusal.lacks_capacity and "Service Quotas" in refusal.explain()


@pytest.mark.parametrize(
    ("code", "remedy"), [("InvalidAMIID.NotFound", "'ami'"), ("UnauthorizedOperation", "docs/ec2.md")]
)
def test_what_is_told_has_a_remedy(code: str, remedy: str) -> None:
    assert remedy in Refusal(code=code, text="No.").explain()


def test_a_gang_looks_for_one_type_then_for_several_then_on_demand() -> None:
    found = search(hosts=2, together=True, fallback=True)
    options = [one.get("SpotOptions", one.get("OnDemandOptions")) for one in found]
    assert [one["SingleInstanceType"] for one in options] == [True, False, False]
    assert [one["TargetCapacitySpecification"]["OnDemandTargetCapacity"] for one in found] == [0, 0, 2]
    assert all(len(one["LaunchTemplateConfigs"][0]["Overrides"]) == 4 for one in found)


def test_a_gang_of_both_kinds_looks_zone_by_zone() -> None:
    found = search(hosts=3, types=("a.b",), on_demand=1, together=True)
    assert [one["LaunchTemplateConfigs"][0]["Overrides"] for one in found] == [
        [{"InstanceType": "a.b", "SubnetId": "subnet-a"}],
        [{"InstanceType": "a.b", "SubnetId": "subnet-b"}],
    ]


@pytest.mark.parametrize(
    ("base", "on_demand", "others"),
    [(2, 2, "on-demand"), (0, 0, "spot"), (1, 1, "spot"), (5, 2, "on-demand")],
)
def test_how_many_hosts_are_on_demand(base: int, on_demand: int, others: str) -> None:
    [found] = search(hosts=2, types=("a.b",), on_demand=base)
    assert found["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 2,
        "OnDemandTargetCapacity": on_demand,
        "SpotTargetCapacity": 2 - on_demand,
        "DefaultTargetCapacityType": others,
    }


def test_a_host_has_its_key_and_its_timer_before_sshd_runs() -> None:
    text = requests.user_data(host_key="PRIVATE\n", host_key_public="ssh-ed25519 AAAA", first_lease=120)
    assert text.startswith("#cloud-config\n") and len(text) < 16_000
    settings = json.loads(text.partition("\n")[2])
    assert settings["ssh_keys"] == {"ed25519_private": "PRIVATE\n", "ed25519_public": "ssh-ed25519 AAAA"}
    [[shell, option, words]] = settings["bootcmd"]
    assert (shell, option) == ("sh", "-c") and "shutdown" in words and "+ 120" in words


def test_hosts_terminate_when_they_shut_down_and_want_imdsv2() -> None:
    data = template()
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    metadata = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"}
    assert data["MetadataOptions"] == metadata
    assert base64.b64decode(data["UserData"]) == b"text"
    assert "BlockDeviceMappings" not in data and "IamInstanceProfile" not in data
    kinds = [entry["ResourceType"] for entry in data["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface"]
