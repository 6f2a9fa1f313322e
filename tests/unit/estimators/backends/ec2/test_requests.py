"""What EC2 is asked for, and how its answers are read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from estimators.backends.ec2 import requests
from estimators.backends.ec2.requests import Answer, ErrorMeaning, Launched, Lifecycle, Pool, Search, Shortage, Wanted

PLACES = (("eu-west-1a", "subnet-a"), ("eu-west-1b", "subnet-b"))
POOLS = requests.pools(("g5.xlarge", "g4dn.2xlarge"), PLACES)
TAGS = {"fleetfit:job": "job"}


def request(**wanted: Any) -> dict[str, Any]:
    return requests.fleet_request(Wanted(**wanted), POOLS, template="lt-1", tags=TAGS, token="token-1")


def test_elastic_hosts_on_spot_capacity_come_from_all_pools() -> None:
    assert request(hosts=3) == {
        "Type": "instant",
        "ClientToken": "token-1",
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "1"},
                "Overrides": [
                    {"InstanceType": "g5.xlarge", "SubnetId": "subnet-a"},
                    {"InstanceType": "g5.xlarge", "SubnetId": "subnet-b"},
                    {"InstanceType": "g4dn.2xlarge", "SubnetId": "subnet-a"},
                    {"InstanceType": "g4dn.2xlarge", "SubnetId": "subnet-b"},
                ],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 3,
            "OnDemandTargetCapacity": 0,
            "SpotTargetCapacity": 3,
            "DefaultTargetCapacityType": "spot",
        },
        "SpotOptions": {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        },
        "TagSpecifications": [
            {"ResourceType": "fleet", "Tags": [{"Key": "fleetfit:job", "Value": "job"}]},
            {"ResourceType": "instance", "Tags": [{"Key": "fleetfit:job", "Value": "job"}]},
        ],
    }


def test_a_gang_is_all_or_none_in_one_zone() -> None:
    asked = request(hosts=4, together=True, one_type=True, max_total_price=3.5)
    assert asked["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized",
        "InstanceInterruptionBehavior": "terminate",
        "SingleAvailabilityZone": True,
        "SingleInstanceType": True,
        "MinTargetCapacity": 4,
        "MaxTotalPrice": "3.5000",
    }


def test_a_base_of_hosts_is_on_demand() -> None:
    asked = request(hosts=4, on_demand=1)
    assert asked["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 4,
        "OnDemandTargetCapacity": 1,
        "SpotTargetCapacity": 3,
        "DefaultTargetCapacityType": "spot",
    }
    assert asked["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    assert "SpotOptions" not in request(hosts=2, on_demand=2)


def test_every_request_is_one_that_botocore_takes() -> None:
    import boto3
    from botocore.validate import ParamValidator

    client = boto3.session.Session().client(
        "ec2", region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    model = client.meta.service_model
    data = requests.template_data(
        image="ami-1", key_name="k", groups=["sg-1"], user_data="x", tags=TAGS,
        root_device="/dev/sda1", volume_gb=50, instance_profile="arn:aws:iam::1:instance-profile/p",
    )  # fmt: skip
    cases = [
        ("CreateFleet", request(hosts=4, on_demand=1, together=True, max_total_price=2.0)),
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
    answer = requests.read_answer(
        {
            "FleetId": "fleet-1",
            "Instances": [
                {"Lifecycle": "spot", "InstanceIds": ["i-1", "i-2"], "InstanceType": "g5.xlarge"},
                {"Lifecycle": "on-demand", "InstanceIds": ["i-3"], "LaunchTemplateAndOverrides": place},
            ],
            "Errors": [error, error],
        }
    )
    assert answer.launched == (
        Launched(id="i-1", type="g5.xlarge", lifecycle=Lifecycle.SPOT),
        Launched(id="i-2", type="g5.xlarge", lifecycle=Lifecycle.SPOT),
        Launched(id="i-3", type="g5.xlarge", lifecycle=Lifecycle.ON_DEMAND),
    )
    assert [str(shortage) for shortage in answer.shortages] == ["g5.xlarge in eu-west-1b: InsufficientInstanceCapacity"]
    assert answer.hopeless is None


@pytest.mark.parametrize("response", [{}, {"Instances": None, "Errors": None}, {"Errors": [{}]}, {"Instances": [{}]}])
def test_an_empty_answer_is_read_too(response: dict[str, Any]) -> None:
    assert requests.read_answer(response).launched == ()


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
    answer = Answer(shortages=tuple(Shortage(code=code, text="") for code in codes))
    assert (answer.hopeless.code if answer.hopeless else None) == hopeless
    assert requests.kind_of("RequestLimitExceeded") is ErrorMeaning.PASSES


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("VcpuLimitExceeded", "Service Quotas"),
        ("InvalidAMIID.NotFound", "'ami'"),
        ("UnauthorizedOperation", "docs/ec2.md"),
    ],
)
def test_what_is_told_has_a_remedy(code: str, remedy: str) -> None:
    assert remedy in requests.explain(Shortage(code=code, text="No."))


def test_a_gang_looks_for_one_type_then_for_several_then_on_demand() -> None:
    search = Search(hosts=2, types=("a.b", "c.d"), places=PLACES, spot=True, together=True, fallback=True)
    assert [(wanted.one_type, wanted.on_demand) for wanted, _ in search.rounds()] == [
        (True, 0),
        (False, 0),
        (False, 2),
    ]
    assert all(len(found) == 4 for _, found in search.rounds())


def test_a_gang_of_both_kinds_looks_zone_by_zone() -> None:
    search = Search(hosts=3, types=("a.b",), places=PLACES, spot=True, on_demand_base=1, together=True)
    assert [pools for _, pools in search.rounds()] == [
        (Pool(type="a.b", zone="eu-west-1a", subnet="subnet-a"),),
        (Pool(type="a.b", zone="eu-west-1b", subnet="subnet-b"),),
    ]


@pytest.mark.parametrize(("spot", "base", "on_demand"), [(False, 0, 2), (True, 0, 0), (True, 1, 1), (True, 5, 2)])
def test_how_many_hosts_are_on_demand(spot: bool, base: int, on_demand: int) -> None:
    [(wanted, _)] = Search(hosts=2, types=("a.b",), places=PLACES, spot=spot, on_demand_base=base).rounds()
    assert (wanted.hosts, wanted.on_demand) == (2, on_demand)


def test_waits_grow_to_a_bound_and_do_not_keep_step() -> None:
    assert [requests.wait_before(number, chance=0.5) for number in (1, 2, 3, 4, 5, 50)] == [5, 10, 20, 40, 60, 60]
    assert requests.wait_before(1, chance=0.0) == 3.75 and requests.wait_before(1, chance=1.0) == 6.25


def test_a_host_has_its_key_and_its_timer_before_sshd_runs() -> None:
    text = requests.user_data(host_key="PRIVATE\n", host_key_public="ssh-ed25519 AAAA", first_lease=120)
    assert text.startswith("#cloud-config\n") and len(text) < 16_000
    settings = json.loads(text.partition("\n")[2])
    assert settings["ssh_keys"] == {"ed25519_private": "PRIVATE\n", "ed25519_public": "ssh-ed25519 AAAA"}
    [[shell, option, words]] = settings["bootcmd"]
    assert (shell, option) == ("sh", "-c") and "shutdown" in words and "+ 120" in words


def test_hosts_terminate_when_they_shut_down_and_want_imdsv2() -> None:
    data = requests.template_data(image="ami-1", key_name="k", groups=["sg-1"], user_data="text", tags=TAGS)
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"] == {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "HttpEndpoint": "enabled",
    }
    assert base64.b64decode(data["UserData"]) == b"text"
    assert "BlockDeviceMappings" not in data and "IamInstanceProfile" not in data
    kinds = [entry["ResourceType"] for entry in data["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface"]
