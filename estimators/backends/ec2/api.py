"""EC2's API, for one region. Everything here blocks: it is called in threads.

Every call can be repeated: what is made for a fleet is found again by its name or its tag, and what is removed may be
gone already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ipaddress
import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from estimators.backends.ec2 import requests
from estimators.backends.ec2.options import GPU_IMAGE, PLAIN_IMAGE, Ec2Options
from estimators.backends.ec2.prices import Price
from estimators.backends.ec2.requests import Answer, Lifecycle, Pool, Shortage, Wanted
from estimators.backends.sagemaker.aws import Aws
from estimators.job.errors import ConfigurationError

#: Who says what this machine's address looks like from outside.
_CHECK_IP = "https://checkip.amazonaws.com"
#: Failures that only say that it is gone already.
_GONE = ("NotFound", ".Unknown", ".Malformed")
_GONE_STATES = ("shutting-down", "terminated")
#: A spot instance's state reasons that mean that EC2 took it.
_TAKEN = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as EC2 describes it.

    Attributes:
        id: Its id.
        type: Its type.
        zone: Its zone.
        state: ``pending``, ``running`` and so on.
        lifecycle: How it is paid for.
        launched: When, in seconds since the epoch.
        private_address: Its address among the hosts.
        public_address: Its address from outside, if it has one.
        reason: Why it is in its state, EC2's code.
        tags: Its tags.
    """

    id: str
    type: str
    zone: str
    state: str
    lifecycle: Lifecycle
    launched: float
    private_address: str = ""
    public_address: str = ""
    reason: str = ""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def gone(self) -> bool:
        """Return whether it has ended, or is about to."""
        return self.state in _GONE_STATES

    @property
    def taken(self) -> bool:
        """Return whether EC2 has taken it back."""
        return self.gone and self.reason in _TAKEN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """What all hosts of a fleet have in common.

    Attributes:
        template: The launch template's id.
        group: The security group's id.
        places: The zones that may be used, each with a subnet.
    """

    template: str
    group: str
    places: tuple[tuple[str, str | None], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remains:
    """What there is of a fleet.

    Attributes:
        fleet: Its tag.
        job: The job's name.
        owner: Who made it.
        instances: Its instances that have not ended.
        others: What else: ``security group sg-…`` and the like.
    """

    fleet: str
    job: str
    owner: str
    instances: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class ApiError(Exception):
    """A call failed.

    Attributes:
        shortage: Its code and text.
    """

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(requests.explain(shortage))
        self.shortage = shortage


def failure_of(error: Exception) -> Shortage | None:
    """Return what an exception of botocore's says; None for others."""
    if isinstance(error, ApiError):
        return error.shortage
    if isinstance(error, ClientError):
        details: Mapping[str, Any] = error.response.get("Error") or {}
        return Shortage(code=str(details.get("Code") or "unknown"), text=str(details.get("Message") or ""))
    if isinstance(error, HTTPClientError | ConnectionError):
        return Shortage(code="Unavailable", text=str(error))  # nobody answers now
    if isinstance(error, BotoCoreError):
        return Shortage(code=type(error).__name__, text=str(error))
    return None


class Ec2Api:
    """EC2 in one region.

    Args:
        region: The region; None: as boto3 finds it.
        profile: A profile of AWS's configuration files.

    Raises:
        ConfigurationError: there is no region, or no such profile.
    """

    def __init__(self, *, region: str | None = None, profile: str | None = None) -> None:
        self._aws = Aws(region=region, profile=profile)
        self.region = self._aws.region
        self._ec2 = self._aws.client("ec2")

    # --- what there is ---

    def places(self, zones: Sequence[str], subnets: Sequence[str]) -> tuple[str, tuple[tuple[str, str | None], ...]]:
        """Return the VPC, and the zones that may be used with a subnet of each.

        Raises:
            ConfigurationError: there is none, or subnets are of several VPCs.
        """
        if subnets:
            found = self._ec2.describe_subnets(SubnetIds=list(subnets))["Subnets"]
        else:
            found = self._ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        networks = {subnet["VpcId"] for subnet in found}
        if not found:
            raise ConfigurationError(
                f"region {self.region} has no default VPC: set backend_options={{'subnets': ['subnet-…']}}."
            )
        if len(networks) > 1:
            raise ConfigurationError(
                f"the subnets belong to several VPCs ({', '.join(sorted(networks))}). Name subnets of one VPC."
            )
        places = tuple(
            (subnet["AvailabilityZone"], subnet["SubnetId"])
            for subnet in found
            if not zones or subnet["AvailabilityZone"] in zones or subnet.get("AvailabilityZoneId") in zones
        )
        if not places:
            known = ", ".join(sorted(subnet["AvailabilityZone"] for subnet in found))
            raise ConfigurationError(f"no subnet is in {', '.join(zones)}. The subnets are in {known}.")
        return networks.pop(), places

    def image(self, ami: str | None, type_: str) -> tuple[str, str]:
        """Return an image's id and the name of its root device.

        Args:
            ami: An id, or an SSM parameter; None: what fits the type.
            type_: An instance type.

        Raises:
            ConfigurationError: there is no such parameter or image.
        """
        if ami is None:
            [described] = self._ec2.describe_instance_types(InstanceTypes=[type_])["InstanceTypes"]
            architectures = described.get("ProcessorInfo", {}).get("SupportedArchitectures") or ["x86_64"]
            arm = "arm64" in architectures
            if described.get("GpuInfo"):
                ami = GPU_IMAGE.format(architecture="arm64" if arm else "x86_64")
            else:
                ami = PLAIN_IMAGE.format(architecture="arm64" if arm else "amd64")
        if ami.startswith("/"):
            try:
                ami = str(self._aws.client("ssm").get_parameter(Name=ami)["Parameter"]["Value"])
            except ClientError as error:
                if not _code(error).startswith("ParameterNotFound"):
                    raise
                raise ConfigurationError(
                    f"region {self.region} has no SSM parameter {ami!r}: set backend_options={{'ami': 'ami-…'}}."
                ) from None
        images = self._ec2.describe_images(ImageIds=[ami])["Images"]
        if not images:
            raise ConfigurationError(f"region {self.region} has no image {ami}: name an image of this region.")
        return ami, str(images[0].get("RootDeviceName") or "/dev/sda1")

    def describe(self, fleet: str, known: Iterable[str]) -> dict[str, Instance]:
        """Return a fleet's instances that EC2 knows, by id: those with its tag, and those of known ids."""
        found = {one.id: one for one in self._instances([{"Name": f"tag:{requests.FLEET_TAG}", "Values": [fleet]}])}
        lacking = [instance_id for instance_id in known if instance_id not in found]
        if lacking:  # its tag may not be seen yet
            for one in self._instances([{"Name": "instance-id", "Values": lacking}]):
                found[one.id] = one
        return found

    def _instances(self, filters: list[dict[str, Any]]) -> Iterable[Instance]:
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
        for page in pages:
            for reservation in page["Reservations"]:
                for entry in reservation["Instances"]:
                    yield _instance(entry)

    # --- making ---

    def make(
        self,
        *,
        fleet: str,
        tags: Mapping[str, str],
        options: Ec2Options,
        type_: str,
        public_key: str,
        user_data: str,
    ) -> Made:
        """Make what a fleet's hosts have in common: key pair, security group and launch template.

        Args:
            fleet: Its tag.
            tags: All tags.
            options: What the job asks for.
            type_: The job's instance type.
            public_key: Who may log in.
            user_data: What the hosts do at their start.

        Raises:
            ConfigurationError: what the job asks for is not there.
        """
        network, places = self.places(options.zones, options.subnets)
        image, device = self.image(options.ami, type_)
        name = resource_name(fleet)
        group = self._make_group(name, network, tags, options.ssh_from or (own_address(),))
        with _passing("InvalidKeyPair.Duplicate"):
            self._ec2.import_key_pair(
                KeyName=name, PublicKeyMaterial=public_key.encode(), TagSpecifications=_tagged("key-pair", tags)
            )
        data = requests.template_data(
            image=image,
            key_name=name,
            groups=[group],
            user_data=user_data,
            tags=tags,
            root_device=device,
            volume_gb=options.volume_gb,
            instance_profile=options.instance_profile,
        )
        try:
            made = self._ec2.create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                ClientToken=fleet,
                TagSpecifications=_tagged("launch-template", tags),
            )["LaunchTemplate"]
        except ClientError as error:
            if _code(error) != "InvalidLaunchTemplateName.AlreadyExistsException":
                raise
            [made] = self._ec2.describe_launch_templates(LaunchTemplateNames=[name])["LaunchTemplates"]
        return Made(template=str(made["LaunchTemplateId"]), group=group, places=places)

    def _make_group(self, name: str, network: str, tags: Mapping[str, str], callers: Sequence[str]) -> str:
        try:
            group = self._ec2.create_security_group(
                GroupName=name,
                Description=f"hosts of {tags[requests.JOB_TAG]}"[:255],
                VpcId=network,
                TagSpecifications=_tagged("security-group", tags),
            )["GroupId"]
        except ClientError as error:
            if _code(error) != "InvalidGroup.Duplicate":
                raise
            filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [network]}]
            [found] = self._ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
            group = found["GroupId"]
        ranges: dict[str, list[dict[str, str]]] = {"IpRanges": [], "Ipv6Ranges": []}
        for caller in callers:
            key, field = ("Ipv6Ranges", "CidrIpv6") if ":" in caller else ("IpRanges", "CidrIp")
            ranges[key].append({field: caller, "Description": "fleetfit's caller"})
        permissions: list[dict[str, Any]] = [
            {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **{k: v for k, v in ranges.items() if v}},
        ]
        for permission in permissions:
            with _passing("InvalidPermission.Duplicate"):
                self._ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[permission])
        return str(group)

    def launch(
        self, wanted: Wanted, pools: Sequence[Pool], *, template: str, tags: Mapping[str, str], token: str
    ) -> Answer:
        """Ask for hosts; what there is not is said in the answer.

        Raises:
            ApiError: it is not known what came of it; asked for again with the same token, nothing is launched twice.
        """
        request = requests.fleet_request(wanted, pools, template=template, tags=tags, token=token)
        try:
            return requests.read_answer(self._ec2.create_fleet(**request))
        except (BotoCoreError, ClientError) as error:
            failure = failure_of(error)
            assert failure is not None
            if failure.code in ("Unavailable", "InternalError", "InternalFailure", "ServiceUnavailable"):
                raise ApiError(failure) from error
            return Answer(shortages=(failure,))

    # --- removing ---

    def terminate(self, ids: Iterable[str]) -> None:
        """Terminate instances; those that EC2 does not know are passed over."""
        wanted = list(ids)
        if not wanted:
            return
        try:
            self._ec2.terminate_instances(InstanceIds=wanted)
            return
        except ClientError as error:
            if not _code(error).startswith("InvalidInstanceID"):
                raise
        if len(wanted) > 1:  # one that is not known keeps all the others
            for instance_id in wanted:
                self.terminate([instance_id])

    def remove(self, fleet: str, known: Iterable[str] = ()) -> list[str]:
        """Terminate a fleet's instances and remove all that was made for it, as far as that is possible now.

        Returns:
            What is still there: a security group goes only when the last instance has.
        """
        name = resource_name(fleet)
        # Without it, a request that is still under way launches nothing.
        templates = [{"Name": "launch-template-name", "Values": [name]}]
        found = self._ec2.describe_launch_templates(Filters=templates)["LaunchTemplates"]
        ids = [entry["LaunchTemplateId"] for entry in found]
        left = [text for one in ids if (text := self._removed("delete_launch_template", LaunchTemplateId=one))]
        there = [one.id for one in self.describe(fleet, known).values() if not one.gone]
        self.terminate(there)
        left += [f"instance {instance_id}" for instance_id in there]
        left += filter(None, [self._removed("delete_key_pair", KeyName=name)])
        left += [
            text for group in self._groups(name) if (text := self._removed("delete_security_group", GroupId=group))
        ]
        return left

    def _removed(self, operation: str, **what: str) -> str | None:
        """Remove something; return what is still there and why."""
        try:
            getattr(self._ec2, operation)(**what)
        except ClientError as error:
            if not any(word in _code(error) for word in _GONE):
                return f"{' '.join(what.values())} ({_code(error)})"
        return None

    def _groups(self, name: str) -> list[str]:
        found = self._ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])
        return [str(group["GroupId"]) for group in found["SecurityGroups"]]

    def remains(self) -> list[Remains]:
        """Return what there is of fleets of ours in the region, whoever made them."""
        filters = [{"Name": "tag-key", "Values": [requests.FLEET_TAG]}]
        there: list[tuple[Mapping[str, str], list[str], list[str]]]
        there = [(one.tags, [one.id], []) for one in self._instances(filters) if not one.gone]
        for kind, operation, entries, name in (
            ("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
            ("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName"),
            ("key pair", "describe_key_pairs", "KeyPairs", "KeyName"),
        ):
            for entry in getattr(self._ec2, operation)(Filters=filters)[entries]:
                there.append((_tags(entry), [], [f"{kind} {entry[name]}"]))
        found: dict[str, Remains] = {}
        for tags, ids, others in there:
            fleet = tags.get(requests.FLEET_TAG, "")
            known = found.get(fleet) or Remains(
                fleet=fleet, job=tags.get(requests.JOB_TAG, ""), owner=tags.get(requests.OWNER_TAG, "")
            )
            found[fleet] = dataclasses.replace(
                known, instances=(*known.instances, *ids), others=(*known.others, *others)
            )
        return list(found.values())

    # --- prices ---

    def spot_prices(self, types: Sequence[str], *, days: float) -> list[Price]:
        """Return what spot hosts cost and cost before, the oldest first.

        Args:
            types: The instance types.
            days: For how far back.
        """
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        pages = self._ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=now - datetime.timedelta(days=days),
            EndTime=now,
        )
        found = [
            Price(
                type=entry["InstanceType"],
                zone=entry["AvailabilityZone"],
                since=entry["Timestamp"].timestamp(),
                per_hour=float(entry["SpotPrice"]),
            )
            for page in pages
            for entry in page["SpotPriceHistory"]
        ]
        return sorted(found, key=lambda price: (price.since, price.type, price.zone))

    def on_demand_price(self, type_: str) -> float | None:
        """Return what a host costs on demand, in US dollars an hour; None where the price list cannot be asked."""
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
        except (BotoCoreError, ClientError):  # not everybody may
            return None
        return read_price([json.loads(text) for text in answer.get("PriceList") or ()])


def read_price(products: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the price in US dollars an hour that is in the price list's products; None if none is."""
    for product in products:
        for term in (product.get("terms") or {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                price = float((dimension.get("pricePerUnit") or {}).get("USD") or 0.0)
                if price > 0 and dimension.get("unit") == "Hrs":
                    return price
    return None


def resource_name(fleet: str) -> str:
    """Return what everything that is made for a fleet is called."""
    return f"fleetfit-{fleet}"


def own_address() -> str:
    """Return this machine's address as it is seen from outside, as a network.

    Raises:
        ConfigurationError: nobody says.
    """
    try:
        with urllib.request.urlopen(_CHECK_IP, timeout=10) as answer:
            text = answer.read(200).decode("ascii", "replace").strip()
        return str(ipaddress.ip_network(text))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"this machine's public address cannot be found ({_CHECK_IP}: {error}). Name the networks that may "
            "connect to the hosts with backend_options={'ssh_from': ['203.0.113.7/32']}."
        ) from None


def _tagged(kind: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": requests.tag_list(tags)}]


def _code(error: Any) -> str:
    return str((error.response.get("Error") or {}).get("Code") or "unknown")


@contextlib.contextmanager
def _passing(code: str) -> Iterator[None]:
    """Pass over one failure: what was to be made is there."""
    try:
        yield
    except ClientError as error:
        if _code(error) != code:
            raise


def _tags(entry: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in entry.get("Tags") or ()}


def _instance(entry: Mapping[str, Any]) -> Instance:
    return Instance(
        id=str(entry["InstanceId"]),
        type=str(entry.get("InstanceType") or ""),
        zone=str((entry.get("Placement") or {}).get("AvailabilityZone") or ""),
        state=str(entry["State"]["Name"]),
        lifecycle=Lifecycle.SPOT if entry.get("InstanceLifecycle") == "spot" else Lifecycle.ON_DEMAND,
        launched=entry["LaunchTime"].timestamp() if entry.get("LaunchTime") else 0.0,
        private_address=str(entry.get("PrivateIpAddress") or ""),
        public_address=str(entry.get("PublicIpAddress") or ""),
        reason=str((entry.get("StateReason") or {}).get("Code") or ""),
        tags=_tags(entry),
    )
