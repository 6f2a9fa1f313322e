"""A fleet on EC2's API: made, asked for, found again, removed."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from ec2_server import REGION, Ec2Server

from estimators import ConfigurationError
from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import Ec2Api, reason_of
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.sagemaker.explaining import passes

Places = tuple[tuple[str, str], ...]
TYPE = "c5.large"
TAGS = requests.tags_of("job-1", "fleet-1", "ann@desk", {"team": "vision"})


@pytest.fixture(scope="module")
def the_api(region: Ec2Server) -> Ec2Api:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in region.environment.items():
            patch.setenv(name, value)
        return Ec2Api()


@pytest.fixture
def api(ec2: Ec2Server, the_api: Ec2Api) -> Ec2Api:
    """Its client is kept: reading the service's model takes its time."""
    return the_api


@pytest.fixture(scope="module")
def public_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return Path(f"{path}.pub").read_text()


@pytest.fixture
def options(ec2: Ec2Server) -> Ec2Options:
    return Ec2Options(
        subnets=tuple(ec2.subnets.values()), ami="/fleetfit/image", ssh_from=("203.0.113.7/32",), volume_gb=50
    )


@pytest.fixture
def made(api: Ec2Api, options: Ec2Options, public_key: str) -> Places:
    return make(api, options, public_key)


def make(api: Ec2Api, options: Ec2Options, public_key: str) -> Places:
    return api.make("fleet-1", TAGS, options, TYPE, public_key, user_data="#cloud-config\n{}")


def launch(api: Ec2Api, made: Places, token: str, **search: Any) -> requests.FleetAnswer:
    subnets = [subnet for _, subnet in made]
    [request, *_] = requests.fleet_requests(
        Ec2Options(), template="fleetfit-fleet-1", tags=TAGS, types=(TYPE,), subnets=subnets, **search
    )
    return api.launch(request, token)


def test_what_hosts_share_is_made_once_tagged_and_removed(
    ec2: Ec2Server, api: Ec2Api, made: Places, options: Ec2Options, public_key: str
) -> None:
    assert make(api, options, public_key) == made  # a second time finds what the first has made
    client = ec2.client()
    own = [{"Name": "group-name", "Values": ["fleetfit-fleet-1"]}]
    [group] = client.describe_security_groups(Filters=own)["SecurityGroups"]
    among, ssh = sorted(group["IpPermissions"], key=lambda rule: rule["IpProtocol"])
    assert [pair["GroupId"] for pair in among["UserIdGroupPairs"]] == [group["GroupId"]] and among["IpRanges"] == []
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    assert [entry["CidrIp"] for entry in ssh["IpRanges"]] == ["203.0.113.7/32"]
    [template] = client.describe_launch_template_versions(LaunchTemplateName="fleetfit-fleet-1")[
        "LaunchTemplateVersions"
    ]
    data = template["LaunchTemplateData"]
    assert data["ImageId"] == ec2.image and data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 50
    resources = list(api.resources())
    assert [one.kind for one in resources] == ["security group", "launch template", "key pair"]
    names = (requests.FLEET_TAG, requests.JOB_TAG, requests.OWNER_TAG)
    assert {tuple(one.tags[name] for name in names) for one in resources} == {("fleet-1", "job-1", "ann@desk")}
    assert api.remove("fleet-1") == []
    assert list(api.resources()) == []
    assert api.remove("fleet-1") == []  # there is nothing any more


def test_hosts_are_launched_found_by_their_tag_and_terminated(ec2: Ec2Server, api: Ec2Api, made: Places) -> None:
    answer = launch(api, made, "t-1", hosts=3, on_demand=1)
    assert launch(api, made, "t-1", hosts=3, on_demand=1) == answer  # an answer was lost, say
    found = {one.id: one for one in api.describe("fleet-1")}
    assert set(found) == set(answer.launched) == set(ec2.running()) and len(found) == 3
    assert {one.type for one in found.values()} == {TYPE}
    assert all(one.private_address and one.launched and not one.gone for one in found.values())
    assert sum(one.spot for one in found.values()) == 2
    described = ec2.client().describe_instances()["Reservations"][0]["Instances"][0]
    assert {"Key": "team", "Value": "vision"} in described["Tags"]
    first, second, third = found
    api.terminate([first])
    ec2.end(second, "Server.SpotInstanceTermination")
    after = {one.id: one for one in api.describe("fleet-1")}
    assert [after[one].gone for one in (first, second, third)] == [True, True, False]
    assert [after[one].interrupted for one in (first, second, third)] == [False, True, False]
    assert f"instance {third}" in api.remove("fleet-1")
    assert ec2.running() == [] and api.remove("fleet-1") == []


def test_what_ec2_lacks_or_refuses_is_an_answer_and_a_gang_gets_all_or_nothing(
    ec2: Ec2Server, api: Ec2Api, made: Places
) -> None:
    ec2.capacity = {(TYPE, f"{REGION}a"): 1, (TYPE, f"{REGION}b"): 0}
    gang = launch(api, made, "t-1", hosts=2, together=True)
    assert gang.launched == () and gang.hopeless is None
    assert {str(refusal) for refusal in gang.refusals} == {
        f"{TYPE} in {REGION}a: InsufficientInstanceCapacity",
        f"{TYPE} in {REGION}b: InsufficientInstanceCapacity",
    }
    elastic = launch(api, made, "t-2", hosts=2)
    assert len(elastic.launched) == 1 and elastic.refusals
    assert len(launch(api, made, "t-3", hosts=1).launched) == 0
    ec2.capacity.clear()
    ec2.refuse("CreateFleet", "RequestLimitExceeded", times=2, status=503)
    assert len(launch(api, made, "t-4", hosts=1, on_demand=1).launched) == 1
    ec2.refuse("CreateFleet", "UnauthorizedOperation", status=403)
    with pytest.raises(ClientError) as refused:
        launch(api, made, "t-5", hosts=1)
    assert not passes(refused.value) and "docs/ec2.md" in reason_of(refused.value)
    ec2.refuse("CreateFleet", "InternalError", times=9, status=500)
    with pytest.raises(ClientError) as failed:
        launch(api, made, "t-6", hosts=1)
    assert passes(failed.value)  # nobody knows what came of it


def test_an_image_or_subnet_that_is_not_there_is_said_by_name(
    api: Ec2Api, options: Ec2Options, public_key: str
) -> None:
    with pytest.raises(ConfigurationError, match="no SSM parameter '/fleetfit/typo'"):
        make(api, dataclasses.replace(options, ami="/fleetfit/typo"), public_key)
    with pytest.raises(Exception, match="InvalidAMIID") as wrong:
        make(api, dataclasses.replace(options, ami="ami-00000000000000000"), public_key)
    assert "'ami'" in reason_of(wrong.value)
    with pytest.raises(ConfigurationError, match=r"no subnet is in eu-west-1c\. The subnets are in eu-west-1a"):
        make(api, dataclasses.replace(options, zones=("eu-west-1c",)), public_key)


def test_prices_have_type_zone_and_moment(api: Ec2Api) -> None:
    prices = api.prices([TYPE], on_demand=0.1, spot_days=3)
    assert prices.pop((TYPE, "")) == [(0.0, 0.1)]
    assert prices and all(type_ == TYPE and zone.startswith(REGION) for type_, zone in prices)
    assert all(price > 0 for series in prices.values() for _, price in series)
