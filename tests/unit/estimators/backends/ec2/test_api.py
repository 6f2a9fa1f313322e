"""How EC2's answers are taken, as botocore gives them: those that EC2 gives only now and then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import Ec2Api
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.sagemaker.explaining import passes
from estimators.job.errors import BackendError, ConfigurationError

Places = tuple[tuple[str, str], ...]
TAGS = requests.tags_of("job-1", "fleet-1", "ann@desk", {})
SUBNET = {"SubnetId": "subnet-a", "VpcId": "vpc-1", "AvailabilityZone": "eu-west-1a"}
[REQUEST] = requests.fleet_requests(
    Ec2Options(), template="fleetfit-fleet-1", tags=TAGS, hosts=1, types=("c5.large",), subnets=("subnet-a",)
)
IMAGE = {"ImageId": "ami-1", "RootDeviceName": "/dev/sda1"}


@pytest.fixture(scope="module")
def the_api() -> Ec2Api:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "none")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        return Ec2Api(region="eu-west-1")


@pytest.fixture
def ec2(the_api: Ec2Api) -> Iterator[Stubber]:
    """EC2's next answers, each to an operation; the client is kept, as reading the service's model takes its time."""
    with Stubber(the_api._ec2) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def make(api: Ec2Api) -> Places:
    options = Ec2Options(subnets=("subnet-a",), ami="ami-1", ssh_from=("203.0.113.7/32",))
    return api.make("fleet-1", TAGS, options, "c5.large", public_key="k", user_data="")


def found(ec2: Stubber) -> None:
    """Answer what is asked for before anything is made."""
    ec2.add_response("describe_subnets", {"Subnets": [SUBNET]})
    ec2.add_response("describe_images", {"Images": [IMAGE]})


def test_what_is_made_has_the_ids_of_the_answers_and_need_not_be_listed_yet(the_api: Ec2Api, ec2: Stubber) -> None:
    found(ec2)
    ec2.add_response("create_security_group", {"GroupId": "sg-1"})
    ec2.add_response("authorize_security_group_ingress", {})
    ec2.add_response("import_key_pair", {})
    ec2.add_response("create_launch_template", {})
    assert make(the_api) == (("eu-west-1a", "subnet-a"),)


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_there_already_is_looked_for_by_its_name(listed: bool, the_api: Ec2Api, ec2: Stubber) -> None:
    found(ec2)
    ec2.add_client_error("create_security_group", "InvalidGroup.Duplicate")
    ec2.add_response("describe_security_groups", {"SecurityGroups": [{"GroupId": "sg-1"}] if listed else []})
    if not listed:
        with pytest.raises(BackendError, match="EC2 has fleetfit-fleet-1 already, but does not list it yet"):
            make(the_api)
        return
    ec2.add_client_error("authorize_security_group_ingress", "InvalidPermission.Duplicate")
    ec2.add_client_error("import_key_pair", "InvalidKeyPair.Duplicate")
    ec2.add_client_error("create_launch_template", "InvalidLaunchTemplateName.AlreadyExistsException")
    assert make(the_api) == (("eu-west-1a", "subnet-a"),)


def test_an_image_that_ec2_does_not_list_is_said_by_name(the_api: Ec2Api, ec2: Stubber) -> None:
    ec2.add_response("describe_subnets", {"Subnets": [SUBNET]})
    ec2.add_response("describe_images", {"Images": []})
    with pytest.raises(ConfigurationError, match="region eu-west-1 has no image ami-1: name an image of this region"):
        make(the_api)


def test_subnets_of_several_networks_are_refused(the_api: Ec2Api, ec2: Stubber) -> None:
    ec2.add_response("describe_subnets", {"Subnets": [{**SUBNET, "VpcId": "vpc-2"}, SUBNET]})
    with pytest.raises(ConfigurationError, match=r"the subnets belong to several VPCs \(vpc-1, vpc-2\): name subnets"):
        make(the_api)


def test_a_lack_of_capacity_is_an_answer(the_api: Ec2Api, ec2: Stubber) -> None:
    ec2.add_client_error("create_fleet", "InsufficientInstanceCapacity")
    answer = the_api.launch(REQUEST, "t-1")
    assert answer.launched == () and answer.refusals[0].code == "InsufficientInstanceCapacity"


@pytest.mark.parametrize(("code", "again"), [("InternalError", True), ("UnauthorizedOperation", False)])
def test_a_request_that_fails_is_told_from_a_lack_of_capacity(
    code: str, again: bool, the_api: Ec2Api, ec2: Stubber
) -> None:
    ec2.add_client_error("create_fleet", code)
    with pytest.raises(ClientError, match=code) as failed:
        the_api.launch(REQUEST, "t-1")
    assert passes(failed.value) is again
