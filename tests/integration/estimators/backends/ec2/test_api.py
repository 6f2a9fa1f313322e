"""A fleet on EC2's API: made, asked for, found again, removed."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ec2_server import REGION, Ec2Server

from estimators import ConfigurationError
from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import ApiError, Ec2Api, Made, failure_of
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import Lifecycle, Search

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
def made(api: Ec2Api, options: Ec2Options, public_key: str) -> Made:
    return make(api, options, public_key)


def make(api: Ec2Api, options: Ec2Options, public_key: str) -> Made:
    return api.make(
        fleet="fleet-1", tags=TAGS, options=options, type_=TYPE, public_key=public_key, user_data="#cloud-config\n{}"
    )


def launch(api: Ec2Api, made: Made, token: str, **search: Any) -> requests.Answer:
    [(wanted, pools), *_] = Search(types=(TYPE,), places=made.places, **search).rounds()
    return api.launch(wanted, pools, template=made.template, tags=TAGS, token=token)


def test_what_hosts_share_is_made_once_tagged_and_removed(
    ec2: Ec2Server, api: Ec2Api, made: Made, options: Ec2Options, public_key: str
) -> None:
    assert make(api, options, public_key) == made  # a second time finds what the first has made
    client = ec2.client()
    [group] = client.describe_security_groups(GroupIds=[made.group])["SecurityGroups"]
    among, ssh = sorted(group["IpPermissions"], key=lambda rule: rule["IpProtocol"])
    assert [pair["GroupId"] for pair in among["UserIdGroupPairs"]] == [made.group] and among["IpRanges"] == []
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    assert [entry["CidrIp"] for entry in ssh["IpRanges"]] == ["203.0.113.7/32"]
    [template] = client.describe_launch_template_versions(LaunchTemplateId=made.template)["LaunchTemplateVersions"]
    data = template["LaunchTemplateData"]
    assert data["ImageId"] == ec2.image and data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 50
    [remains] = api.remains()
    assert (remains.fleet, remains.job, remains.owner, remains.instances) == ("fleet-1", "job-1", "ann@desk", ())
    assert [text.rpartition(" ")[0] for text in remains.others] == ["security group", "launch template", "key pair"]
    assert api.remove("fleet-1") == []
    assert api.remains() == []
    assert api.remove("fleet-1") == []  # there is nothing any more


def test_hosts_are_launched_found_by_their_tag_and_terminated(ec2: Ec2Server, api: Ec2Api, made: Made) -> None:
    answer = launch(api, made, "t-1", hosts=3, spot=True, on_demand_base=1)
    assert sorted(one.lifecycle.value for one in answer.launched) == ["on-demand", "spot", "spot"]
    found = api.describe("fleet-1", [])
    assert set(found) == {one.id for one in answer.launched}
    assert {one.type for one in found.values()} == {TYPE}
    assert all(one.private_address and one.launched and not one.gone for one in found.values())
    assert sum(one.lifecycle is Lifecycle.SPOT for one in found.values()) == 2
    described = ec2.client().describe_instances()["Reservations"][0]["Instances"][0]
    assert {"Key": "team", "Value": "vision"} in described["Tags"]
    first, *others = found
    api.terminate([first, "i-00000000000000000"])  # one that nobody knows keeps nobody
    after = api.describe("fleet-1", [])
    assert [after[first].gone, *(after[one].gone for one in others)] == [True, False, False]
    assert [text.split()[0] for text in api.remove("fleet-1")].count("instance") == 2
    assert ec2.running() == [] and api.remove("fleet-1") == []


def test_a_request_that_comes_twice_launches_once(ec2: Ec2Server, api: Ec2Api, made: Made) -> None:
    first = launch(api, made, "t-1", hosts=2, spot=True)
    assert launch(api, made, "t-1", hosts=2, spot=True) == first
    assert len(ec2.running()) == 2


def test_no_capacity_is_an_answer_and_a_gang_gets_all_or_nothing(ec2: Ec2Server, api: Ec2Api, made: Made) -> None:
    ec2.capacity = {(TYPE, f"{REGION}a"): 1, (TYPE, f"{REGION}b"): 0}
    gang = launch(api, made, "t-1", hosts=2, spot=True, together=True)
    assert gang.launched == () and gang.hopeless is None
    assert {str(shortage) for shortage in gang.shortages} == {
        f"{TYPE} in {REGION}a: InsufficientInstanceCapacity",
        f"{TYPE} in {REGION}b: InsufficientInstanceCapacity",
    }
    elastic = launch(api, made, "t-2", hosts=2, spot=True)
    assert len(elastic.launched) == 1 and elastic.shortages
    assert len(launch(api, made, "t-3", hosts=1, spot=True).launched) == 0


def test_throttling_is_tried_again_and_a_refusal_is_an_answer(ec2: Ec2Server, api: Ec2Api, made: Made) -> None:
    ec2.refuse("CreateFleet", "RequestLimitExceeded", times=2, status=503)
    assert len(launch(api, made, "t-1", hosts=1).launched) == 1
    ec2.refuse("CreateFleet", "UnauthorizedOperation", status=403)
    refused = launch(api, made, "t-2", hosts=1)
    assert refused.hopeless is not None and "docs/ec2.md" in requests.explain(refused.hopeless)
    ec2.refuse("CreateFleet", "InternalError", times=9, status=500)
    with pytest.raises(ApiError):  # nobody knows what came of it
        launch(api, made, "t-3", hosts=1)


def test_an_instance_whose_tags_come_late_is_found_by_its_id(ec2: Ec2Server, api: Ec2Api, made: Made) -> None:
    [launched] = launch(api, made, "t-1", hosts=1).launched
    ec2.client().delete_tags(Resources=[launched.id], Tags=[{"Key": requests.FLEET_TAG}])
    assert api.describe("fleet-1", []) == {}
    assert set(api.describe("fleet-1", [launched.id])) == {launched.id}
    assert api.remove("fleet-1", [launched.id])[0] == f"instance {launched.id}"
    assert ec2.running() == []


def test_an_image_or_subnet_that_is_not_there_is_said_by_name(
    api: Ec2Api, options: Ec2Options, public_key: str
) -> None:
    with pytest.raises(ConfigurationError, match="no SSM parameter '/fleetfit/typo'"):
        make(api, dataclasses.replace(options, ami="/fleetfit/typo"), public_key)
    with pytest.raises(Exception, match="InvalidAMIID") as wrong:
        make(api, dataclasses.replace(options, ami="ami-00000000000000000"), public_key)
    failure = failure_of(wrong.value)
    assert failure is not None and "'ami'" in requests.explain(failure)
    with pytest.raises(ConfigurationError, match=r"no subnet is in eu-west-1c\. The subnets are in eu-west-1a"):
        make(api, dataclasses.replace(options, zones=("eu-west-1c",)), public_key)


def test_an_instance_that_ec2_took_is_told_from_one_that_shut_itself_down(
    ec2: Ec2Server, api: Ec2Api, made: Made
) -> None:
    one, other = (launched.id for launched in launch(api, made, "t-1", hosts=2, spot=True).launched)
    ec2.end(one, "Server.SpotInstanceTermination")
    ec2.end(other)
    found = api.describe("fleet-1", [])
    assert (found[one].taken, found[other].taken) == (True, False)
    assert found[other].gone


def test_spot_prices_have_type_zone_and_moment(api: Ec2Api) -> None:
    prices = api.spot_prices([TYPE], days=3)
    assert prices and {price.type for price in prices} == {TYPE}
    assert all(price.zone.startswith(REGION) and price.per_hour > 0 for price in prices)
