"""Call EC2's API in one region. All methods block, so the supervisor calls them in threads.

A fleet is all instances and other resources that one start of a supervisor creates for its job. Every call can be
repeated. Existing resources of a fleet are found by their name or tag, and removing a resource that no longer exists is
not an error.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import ipaddress
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from container.system.holding import hold
from estimators.backends.ec2 import requests
from estimators.backends.ec2.options import GPU_IMAGE, PLAIN_IMAGE, Ec2Options
from estimators.backends.ec2.prices import Prices
from estimators.backends.ec2.requests import FleetAnswer, Instance, Refusal, tagged
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.explaining import code_of
from estimators.job.errors import BackendError, ConfigurationError, FleetfitError

#: The exceptions of a failed call.
ERRORS = (BotoCoreError, ClientError)
#: The service that returns a machine's public address.
_CHECK_IP = "https://checkip.amazonaws.com"
#: Parts of the error codes for resources that do not exist any more.
_GONE = ("NotFound", ".Unknown", ".Malformed")


class Resource(NamedTuple):
    """An existing resource of a fleet.

    Attributes:
        kind: The kind: ``instance``, ``security group``, ``launch template`` or ``key pair``.
        name: The id or the name of the resource.
        tags: The tags of the resource.
    """

    kind: str
    name: str
    tags: Mapping[str, str]


def reason_of(error: Exception) -> str:
    """Return why a call has failed, with the remedy, and without a full stop at the end."""
    return str(error).rstrip(".") if isinstance(error, FleetfitError) else Refusal.of(error).explain()


class Ec2Api:
    """A client of EC2 in one region.

    Args:
        region: The region. The default is boto3's default region.
        profile: The name of a profile in AWS's configuration files.

    Raises:
        ConfigurationError: no region is known, or the profile does not exist.
    """

    def __init__(self, *, region: str | None = None, profile: str | None = None) -> None:
        self._aws = Aws(region=region, profile=profile)
        self.region = self._aws.region
        self._ec2 = self._aws.client("ec2")

    # --- existing resources ---

    def _network(self, zones: Sequence[str], subnets: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the id of the VPC, and the permitted availability zones, each with the id of a subnet.

        Args:
            zones: The permitted zones. If empty, all zones are permitted.
            subnets: The permitted subnets. If empty, the subnets of the default VPC are permitted.

        Raises:
            ConfigurationError: no subnet is permitted, or the subnets belong to several VPCs.
        """
        asked = {"SubnetIds": list(subnets)} if subnets else {"Filters": [_filter("default-for-az", "true")]}
        found = self._ec2.describe_subnets(**asked)["Subnets"]
        if not found:
            raise ConfigurationError(
                f"region {self.region} has no default VPC: set backend_options={{'subnets': ['subnet-…']}}."
            )
        networks = sorted({subnet["VpcId"] for subnet in found})
        if len(networks) > 1:
            raise ConfigurationError(
                f"the subnets belong to several VPCs ({', '.join(networks)}): name subnets of one VPC."
            )
        places = tuple(
            (subnet["AvailabilityZone"], subnet["SubnetId"])
            for subnet in found
            if not zones or subnet["AvailabilityZone"] in zones or subnet.get("AvailabilityZoneId") in zones
        )
        if not places:
            known = ", ".join(sorted(subnet["AvailabilityZone"] for subnet in found))
            raise ConfigurationError(f"no subnet is in {', '.join(zones)}. The subnets are in {known}.")
        return networks[0], places

    def _image(self, ami: str | None, type_: str) -> tuple[str, str]:
        """Return the id of an image and the name of its root device.

        Args:
            ami: The image's id, or the SSM parameter that contains it. If None, the newest Ubuntu image for the
                instance type is used.
            type_: The instance type.

        Raises:
            ConfigurationError: the image or the parameter does not exist in the region.
        """
        if ami is None:
            [described] = self._ec2.describe_instance_types(InstanceTypes=[type_])["InstanceTypes"]
            arm = "arm64" in described["ProcessorInfo"]["SupportedArchitectures"]
            if described.get("GpuInfo"):
                ami = GPU_IMAGE.format(architecture="arm64" if arm else "x86_64")
            else:
                ami = PLAIN_IMAGE.format(architecture="arm64" if arm else "amd64")
        if ami.startswith("/"):
            ssm = self._aws.client("ssm")
            try:
                ami = str(ssm.get_parameter(Name=ami)["Parameter"]["Value"])
            except ssm.exceptions.ParameterNotFound:
                raise ConfigurationError(
                    f"region {self.region} has no SSM parameter {ami!r}: set backend_options={{'ami': 'ami-…'}}."
                ) from None
        images = self._ec2.describe_images(ImageIds=[ami])["Images"]
        if not images:
            raise ConfigurationError(f"region {self.region} has no image {ami}: name an image of this region.")
        return ami, images[0]["RootDeviceName"]

    def describe(self, fleet: str) -> list[Instance]:
        """Return the instances that EC2 lists with the fleet's tag. Each instance has the tag from its launch."""
        return [Instance.of(entry) for entry in self._instances(_filter(f"tag:{requests.FLEET_TAG}", fleet))]

    def _instances(self, *filters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
        yield from pages.search("Reservations[].Instances[]")

    # --- creating ---

    def make(
        self, fleet: str, tags: Mapping[str, str], options: Ec2Options, type_: str, public_key: str, user_data: str
    ) -> tuple[tuple[str, str], ...]:
        """Create the resources that all hosts of a fleet share: key pair, security group and launch template. Their
        name is :func:`resource_name`.

        Args:
            fleet: The tag of the fleet.
            tags: The tags of all resources.
            options: The EC2 options of the job.
            type_: The instance type of the job.
            public_key: The public key for the login by ssh.
            user_data: The cloud-init configuration of the hosts.

        Returns:
            The permitted availability zones, each with the id of a subnet.

        Raises:
            ConfigurationError: a resource that the options name does not exist.
            BackendError: the security group was created before, but EC2 does not list it yet.
        """
        network, places = self._network(options.zones, options.subnets)
        image, device = self._image(options.ami, type_)
        name = resource_name(fleet)
        group = self._make_group(name, network, tags, options.ssh_from or (own_address(),))
        with _unless("InvalidKeyPair.Duplicate"):
            self._ec2.import_key_pair(
                KeyName=name, PublicKeyMaterial=public_key.encode(), TagSpecifications=tagged(tags, "key-pair")
            )
        data = requests.template_data(
            options, image=image, root_device=device, name=name, group=group, user_data=user_data, tags=tags
        )
        with _unless("InvalidLaunchTemplateName.AlreadyExistsException"):
            self._ec2.create_launch_template(
                LaunchTemplateName=name, LaunchTemplateData=data, TagSpecifications=tagged(tags, "launch-template")
            )
        return places

    def _make_group(self, name: str, network: str, tags: Mapping[str, str], callers: Sequence[str]) -> str:
        text = f"hosts of {tags[requests.JOB_TAG]}"[:255]
        groups: list[str] = []
        with _unless("InvalidGroup.Duplicate"):
            made = self._ec2.create_security_group(
                GroupName=name, Description=text, VpcId=network, TagSpecifications=tagged(tags, "security-group")
            )
            groups = [made["GroupId"]]
        groups = groups or self._groups(name)
        if not groups:
            raise BackendError(f"EC2 has {name} already, but does not list it yet. Try again.")
        [group] = groups
        ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
        permissions: list[dict[str, Any]] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        for caller in callers:
            kind, address = ("Ipv6Ranges", "CidrIpv6") if ":" in caller else ("IpRanges", "CidrIp")
            permissions.append({**ssh, kind: [{address: caller, "Description": "fleetfit's caller"}]})
        with _unless("InvalidPermission.Duplicate"):
            self._ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=permissions)
        return group

    def launch(self, request: Mapping[str, Any], token: str) -> FleetAnswer:
        """Request instances, and return EC2's answer.

        If EC2 lacks capacity, the answer contains the reasons, and no exception is raised.

        Args:
            request: The arguments of ``CreateFleet``, from :func:`requests.fleet_requests`.
            token: The client token of the request. If a request is repeated with the same token after a lost answer,
                EC2 launches no additional instances.

        Raises:
            BotoCoreError: EC2 has not answered.
            ClientError: EC2 has refused the request, for another reason than missing capacity.
        """
        try:
            answer = FleetAnswer.of(self._ec2.create_fleet(**request, ClientToken=token))
        except ClientError as error:
            answer = FleetAnswer(refusals=(Refusal.of(error),))
            if not answer.refusals[0].lacks_capacity:
                raise
        hold("ec2.launched")
        return answer

    # --- removing ---

    def terminate(self, ids: Iterable[str]) -> None:
        """Terminate instances.

        Args:
            ids: The ids of instances that EC2 has described.
        """
        if wanted := list(ids):
            self._ec2.terminate_instances(InstanceIds=wanted)

    def remove(self, fleet: str) -> list[str]:
        """Terminate a fleet's instances, and remove the other resources of the fleet as far as EC2 permits it now.

        Returns:
            The resources that still exist. A security group can be removed only after the last instance has ended.
        """
        name = resource_name(fleet)
        left = []
        templates = self._ec2.describe_launch_templates(Filters=[_filter("launch-template-name", name)])
        for template in templates["LaunchTemplates"]:  # without the template, a request in progress launches nothing
            left += self._removed(self._ec2.delete_launch_template, LaunchTemplateId=template["LaunchTemplateId"])
        there = [one.id for one in self.describe(fleet) if not one.gone]
        self.terminate(there)
        left += [f"instance {instance_id}" for instance_id in there]
        left += self._removed(self._ec2.delete_key_pair, KeyName=name)
        for group in self._groups(name):
            left += self._removed(self._ec2.delete_security_group, GroupId=group)
        return left

    def _removed(self, operation: Callable[..., Any], **arguments: str) -> list[str]:
        """Remove a resource.

        Args:
            operation: The method of boto3's client.
            arguments: The arguments of the method.

        Returns:
            The resource's name with the error code if the resource still exists. Otherwise, an empty list.
        """
        try:
            operation(**arguments)
        except ClientError as error:
            if not any(word in code_of(error) for word in _GONE):
                return [f"{' '.join(arguments.values())} ({code_of(error)})"]
        return []

    def _groups(self, name: str) -> list[str]:
        found = self._ec2.describe_security_groups(Filters=[_filter("group-name", name)])
        return [group["GroupId"] for group in found["SecurityGroups"]]

    def resources(self) -> Iterator[Resource]:
        """Yield the existing resources of the fleets of all users in the region."""
        ours = _filter("tag-key", requests.FLEET_TAG)
        alive = _filter("instance-state-name", "pending", "running", "stopping", "stopped")
        for kind, name, entries in (
            ("instance", "InstanceId", self._instances(ours, alive)),
            ("security group", "GroupId", self._ec2.describe_security_groups(Filters=[ours])["SecurityGroups"]),
            (
                "launch template",
                "LaunchTemplateName",
                self._ec2.describe_launch_templates(Filters=[ours])["LaunchTemplates"],
            ),
            ("key pair", "KeyName", self._ec2.describe_key_pairs(Filters=[ours])["KeyPairs"]),
        ):
            for entry in entries:
                yield Resource(kind, entry[name], {tag["Key"]: tag["Value"] for tag in entry["Tags"]})

    # --- prices ---

    def prices(self, types: Sequence[str], *, on_demand: float | None, spot_days: float) -> Prices:
        """Return the prices of instance types, by type and availability zone. See :data:`Prices`.

        Args:
            types: The instance types.
            on_demand: The on-demand price of each type in US dollars per hour. If None, AWS's price list is read.
            spot_days: The number of past days for which spot prices are returned. If 0, no spot prices are returned.
        """
        found = collections.defaultdict(list)
        for type_ in types:
            if (price := on_demand or self._on_demand_price(type_)) is not None:
                found[type_, ""].append((0.0, price))
        if spot_days:
            now = datetime.datetime.now(tz=datetime.timezone.utc)
            pages = self._ec2.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=list(types),
                ProductDescriptions=["Linux/UNIX"],
                StartTime=now - datetime.timedelta(days=spot_days),
                EndTime=now,
            )
            for entry in pages.search("SpotPriceHistory[]"):
                moment, price = entry["Timestamp"].timestamp(), float(entry["SpotPrice"])
                found[entry["InstanceType"], entry["AvailabilityZone"]].append((moment, price))
        return {pool: sorted(series) for pool, series in found.items()}

    def _on_demand_price(self, type_: str) -> float | None:
        """Return a type's on-demand price in US dollars per hour.

        Return None if AWS's price list does not contain the type or cannot be read.
        """
        wanted = {
            "instanceType": type_,
            "regionCode": self.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        # The price list has an endpoint in a few regions only.
        client = self._aws.session.client("pricing", region_name="us-east-1")
        try:
            answer = client.get_products(
                ServiceCode="AmazonEC2",
                Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
            )
        except ERRORS:  # the caller may lack the permission
            return None
        return read_price([json.loads(text) for text in answer["PriceList"]])


def read_price(products: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the first hourly price in US dollars that products of AWS's price list contain.

    Return None if the products contain no hourly price in US dollars.
    """
    found = (
        float(dimension["pricePerUnit"].get("USD", 0))
        for product in products
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs"
    )
    return next((price for price in found if price > 0), None)


def resource_name(fleet: str) -> str:
    """Return the common name of all resources that are created for a fleet."""
    return f"fleetfit-{fleet}"


def own_address() -> str:
    """Return this machine's public address as a network, such as ``203.0.113.7/32``.

    Raises:
        ConfigurationError: the address cannot be found.
    """
    try:
        with urllib.request.urlopen(_CHECK_IP, timeout=10) as answer:
            return str(ipaddress.ip_network(answer.read(200).decode("ascii").strip()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"this machine's public address cannot be found ({_CHECK_IP}: {error}). Name the networks that may "
            "connect to the hosts with backend_options={'ssh_from': ['203.0.113.7/32']}."
        ) from None


@contextlib.contextmanager
def _unless(duplicate: str) -> Iterator[None]:
    """Suppress EC2's error in the block if the error says that the resource to be created already exists.

    The resource may exist because EC2's answer to an earlier request was lost. EC2's error code shows reliably that the
    resource exists. A list of resources would not show this, because EC2 may not list a new resource yet.

    Args:
        duplicate: EC2's error code for an existing resource.
    """
    try:
        yield
    except ClientError as error:
        if code_of(error) != duplicate:
            raise


def _filter(name: str, *values: str) -> dict[str, Any]:
    return {"Name": name, "Values": values}
